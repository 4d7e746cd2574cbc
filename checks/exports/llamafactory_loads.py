"""`python llamafactory_loads.py DIR...`: LLaMA-Factory reads `dataset_info.json`, converts and tokenizes.

Its module for pictures and sound imports torchaudio; a stub stands in for it, no text comes near it.
"""

import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path

from transformers.utils import is_torchaudio_available

assert not is_torchaudio_available()  # remembered: transformers does not take the stub for it
sys.modules["torchaudio"] = types.ModuleType("torchaudio")

import tiny  # noqa: E402
from llamafactory.data.loader import _load_single_dataset  # noqa: E402
from llamafactory.data.parser import get_dataset_list  # noqa: E402
from llamafactory.data.processor.supervised import SupervisedDatasetProcessor  # noqa: E402
from llamafactory.data.template import get_template_and_fix_tokenizer  # noqa: E402


def main(place: Path) -> None:
    names = [name for name in ("train", "train_last") if (place / f"{name}.jsonl").exists()]
    texts = [line for name in names for line in (place / f"{name}.jsonl").open(encoding="utf-8")]
    tokens = tiny.tokenizer(texts, "")
    told, skipped = {}, 0
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            rows = converted(place, name, scratch)
        skipped += sum(not row["_response"] for row in rows)
        options = settings(place, mask_history=name == "train_last")
        template = get_template_and_fix_tokenizer(tokens, options)
        processor = SupervisedDatasetProcessor(template, tokens, None, options)
        batch = {key: [row[key] for row in rows] for key in rows[0]}
        made = processor.preprocess_dataset(batch)
        pairs = zip(made["input_ids"], made["labels"], strict=True)
        told[name] = [
            {"all": tokens.decode(ids), "trained": tiny.trained(tokens, ids, labels)} for ids, labels in pairs
        ]
    tiny.tell(
        rows=told,
        skipped=skipped,
        versions={name: version(name) for name in ("llamafactory", "datasets", "transformers")},
    )


def settings(place: Path, **options):
    """LLaMA-Factory's data arguments, as a configuration gives them."""
    from llamafactory.hparams import DataArguments

    return DataArguments(
        template="qwen3", dataset_dir=str(place), cutoff_len=10**9, preserve_thinking=True, **options
    )


def converted(place: Path, name: str, scratch: str):
    """The rows of a data set that `dataset_info.json` describes, as LLaMA-Factory aligns them."""
    (described,) = get_dataset_list([f"passagent_{name}"], str(place))
    model = types.SimpleNamespace(cache_dir=scratch, hf_hub_token=None)
    training = types.SimpleNamespace(local_process_index=0)
    return [*_load_single_dataset(described, model, settings(place, overwrite_cache=True), training)]


for word in sys.argv[1:]:
    main(Path(word))
