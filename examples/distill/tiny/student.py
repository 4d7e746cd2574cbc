"""Make a student from nothing: `python student.py DATA DIR`.

A tokenizer, trained on the rows of DATA, and a Qwen3 of two layers with random weights. Nothing is
downloaded.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = "chat_templates/qwen3_instruct_2507.jinja"
"""TRL's copy of the template of a Qwen3 that does not think: the teachers here tell no thoughts."""


def main(data: Path, out: Path) -> None:
    set_seed(0)
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    texts = [line for path in sorted(data.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [PAD, START, END]
    pieces.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=2000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    pieces.add_tokens(MARKS)
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token=PAD,
        eos_token=END,
        chat_template=(resources.files("trl") / TEMPLATE).read_text(),
    )
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(out)
    tokens.save_pretrained(out)


main(Path(sys.argv[1]), Path(sys.argv[2]))
