"""`python axolotl_loads.py TEMPLATE DIR...`: axolotl's chat_template strategy as `axolotl.yaml` has it."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import tiny
import yaml
from axolotl.prompt_strategies.chat_template import StrategyLoader
from axolotl.utils.dict import DictDefault
from datasets import load_dataset


def main(place: Path, template: Path) -> None:
    (described,) = yaml.safe_load((place / "axolotl.yaml").read_text())["datasets"]
    path = place / described["path"]
    tokens = tiny.tokenizer(path.open(encoding="utf-8"), template.read_text())
    config = DictDefault(
        {"sequence_len": 10**6, "train_on_inputs": False, "chat_template": "tokenizer_default"}
    )
    strategy = StrategyLoader()(tokens, config, described)
    with tempfile.TemporaryDirectory() as scratch:
        data = load_dataset(described["ds_type"], data_files=str(path), split="train", cache_dir=scratch)
        rows = data.map(strategy.tokenize_prompt, batched=True, remove_columns=data.column_names)
        told = [tiny.trained(tokens, row["input_ids"], row["labels"]) for row in rows]
    tiny.tell(
        trained=told, versions={name: version(name) for name in ("axolotl", "datasets", "transformers")}
    )


for word in sys.argv[2:]:
    main(Path(word), Path(sys.argv[1]))
