"""Models that nobody here wrote, small, with random weights (needs passagent[models])."""

import torch


def _of_transformers(kind: str, settings: str, **sizes: object):
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, settings)(**sizes)).eval()
    model.config.return_dict = False
    return model, (torch.randint(400, (1, 32)),)


def bert(layers: int = 2):
    return _of_transformers(
        "BertModel", "BertConfig", hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=128, vocab_size=500,
    )  # fmt: skip


def bert_of_12_layers():
    return bert(12)


def llama():
    return _of_transformers(
        "LlamaModel", "LlamaConfig", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, vocab_size=500, use_cache=False,
    )  # fmt: skip


def t5():
    return _of_transformers(
        "T5EncoderModel", "T5Config", d_model=64, d_ff=128, num_layers=2, num_heads=4, d_kv=16, vocab_size=500
    )


def gpt2():
    return _of_transformers(
        "GPT2Model", "GPT2Config", n_embd=64, n_layer=2, n_head=4, vocab_size=500, bos_token_id=1,
        eos_token_id=1, use_cache=False,
    )  # fmt: skip


def vit():
    model, _ = _of_transformers(
        "ViTModel", "ViTConfig", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, image_size=32, patch_size=8,
    )  # fmt: skip
    return model, (torch.randn(1, 3, 32, 32),)


def _of_timm(name: str, size: int, **more: object):
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False, **more).eval(), (torch.randn(1, 3, size, size),)


def resnet18():
    return _of_timm("resnet18", 64)


def convnext():
    return _of_timm("convnext_atto", 64)


def swin():
    return _of_timm("swin_tiny_patch4_window7_224", 224)


def vit_tiny():
    return _of_timm("vit_tiny_patch16_224", 224)


TRANSFORMERS = (bert, llama, t5, gpt2, vit)
TIMM = (resnet18, convnext, swin, vit_tiny)
