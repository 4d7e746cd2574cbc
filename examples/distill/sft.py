"""Fine-tune a model with TRL on what `passagent export --format trl` wrote.

    python sft.py --config trl.yaml --data DIR --output_dir student

Every setting of TRL's SFTConfig can stand in the file or on the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer, TrlParser


@dataclass
class Wanted:
    """What is trained, on what."""

    model: str
    """A directory, or a name on the Hugging Face hub."""
    data: str
    """The directory of the export."""


def rows_of(directory: Path) -> Dataset:
    """Both files of the export in one form: a prompt, and a completion whose replies are trained."""
    rows = [
        {"prompt": row["messages"][:2], "completion": row["messages"][2:], "tools": row["tools"]}
        for row in read(directory / "messages.jsonl")
    ]
    rows += [
        {name: row[name] for name in ("prompt", "completion", "tools")}
        for row in read(directory / "prompt_completion.jsonl")
    ]
    # without use_json, every call would get the arguments of all other calls, as nulls
    return Dataset.from_list(rows, on_mixed_types="use_json")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; an export has no file without rows."""
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def main() -> None:
    wanted, config = TrlParser((Wanted, SFTConfig)).parse_args_and_config()
    trainer = SFTTrainer(wanted.model, config, train_dataset=rows_of(Path(wanted.data)))
    lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
    if config.max_length and max(lengths) >= config.max_length:
        cut = sum(length >= config.max_length for length in lengths)
        raise SystemExit(
            f"{cut} of {len(lengths)} rows do not fit into max_length {config.max_length} and would lose "
            "their end, where the solution is; export fewer steps with --keep, or raise max_length"
        )
    print(f"{len(lengths)} rows of {min(lengths)} to {max(lengths)} tokens")
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
