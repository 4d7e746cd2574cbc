"""`python trl_loads.py DIR...`: load each export as TRL's documentation says, and do an optimiser step."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import tiny
import trl
from datasets import Dataset, load_dataset
from trl import SFTConfig, SFTTrainer


def main(place: Path) -> None:
    template = (Path(trl.__file__).parent / "chat_templates/qwen3_training.jinja").read_text()
    names = [name for name in ("messages", "prompt_completion") if (place / f"{name}.jsonl").exists()]
    texts = [line for name in names for line in (place / f"{name}.jsonl").open(encoding="utf-8")]
    tokens = tiny.tokenizer(texts, template)
    told = {}
    loaded = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            path = str(place / f"{name}.jsonl")
            data = load_dataset("json", data_files=path, split="train", cache_dir=scratch)
            wrong = tiny.differs([*data], tiny.read(place / f"{name}.jsonl"))
            assert wrong is None, f"what is loaded is not what was written: {wrong}"
            loaded[name] = data
            trainer = trainer_of(tokens, data, scratch)
            told[name] = texts_of(tokens, trainer)
            step(trainer)
        if len(names) == 2:  # both in one training, as docs/formats.md says
            whole = [
                {"prompt": row["messages"][:2], "completion": row["messages"][2:], "tools": row["tools"]}
                for row in loaded["messages"]
            ]
            parts = loaded["prompt_completion"].select_columns(["prompt", "completion", "tools"])
            both = Dataset.from_list([*whole, *parts], on_mixed_types="use_json")
            told["both"] = texts_of(tokens, trainer_of(tokens, both, scratch))
    tiny.tell(trained=told, versions={name: version(name) for name in ("trl", "datasets", "transformers")})


def trainer_of(tokens, data, scratch):
    """A trainer with its data made ready."""
    return SFTTrainer(
        tiny.model(len(tokens)),
        SFTConfig(
            scratch,
            max_steps=1,
            per_device_train_batch_size=1,
            assistant_only_loss=True,
            max_length=None,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
        ),
        train_dataset=data,
        processing_class=tokens,
    )


def texts_of(tokens, trainer):
    """Of each row the texts that are in the loss."""
    return [tiny.trained(tokens, row["input_ids"], row["labels"]) for row in trainer.train_dataset]


def step(trainer):
    """One optimiser step, which changes the model."""
    weight = trainer.model.model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    assert trainer.train().global_step == 1
    assert (weight.detach() != before).any()


for word in sys.argv[1:]:
    main(Path(word))
