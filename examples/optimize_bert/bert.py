"""A BERT of 4 layers with random weights: hidden size 256, 64 tokens, float32."""

import torch
import transformers


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    model.config.return_dict = False
    return model, (torch.randint(30_000, (1, 64)),)
