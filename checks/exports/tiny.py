"""A tokenizer and a Qwen3 of a few thousand weights, made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where there is no file."""
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def differs(found: Any, told: Any, where: str = "") -> str | None:
    """Where two values are not the same; None if they are.

    Fractions are compared to nine decimals: `datasets` rounds those in JSON to ten.
    """
    if isinstance(found, dict) and isinstance(told, dict) and found.keys() == told.keys():
        pairs = [(found[key], told[key], f"{where}.{key}") for key in told]
    elif isinstance(found, list) and isinstance(told, list) and len(found) == len(told):
        pairs = [(*pair, f"{where}[{place}]") for place, pair in enumerate(zip(found, told, strict=True))]
    elif isinstance(found, float) and isinstance(told, float):
        return None if math.isclose(found, told, rel_tol=1e-9, abs_tol=1e-9) else where
    else:
        return None if found == told and type(found) is type(told) else where
    return next(filter(None, (differs(*pair) for pair in pairs)), None)


def tokenizer(texts: Iterable[str], template: str) -> Any:
    """A byte-level BPE tokenizer with Qwen's special tokens, trained on `texts`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def model(size: int) -> Any:
    """A random Qwen3 for a vocabulary of `size`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
        )
    )


def trained(tokens: Any, ids: list[int], labels: list[int]) -> list[str]:
    """The texts that are in the loss: each stretch of labels, decoded."""
    found: list[list[int]] = []
    is_open = False
    for token, label in zip(ids, labels, strict=True):
        if label == -100:
            is_open = False
            continue
        assert label == token
        if not is_open:
            found.append([])
        found[-1].append(label)
        is_open = True
    return [tokens.decode(stretch) for stretch in found]


def tell(**result: Any) -> None:
    """Give a result to the check: a line of its own."""
    print(f"\nTOLD {json.dumps(result)}")
    sys.stdout.flush()
