"""`python parquet_loads.py FILE...`: each file of JSON lines as parquet, read back by `datasets`."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import tiny
from datasets import load_dataset

from passagent.data.export.writing import write_parquet


def main(files: list[Path]) -> None:
    wrong, counts = {}, {}
    for file in files:
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch) / "rows.parquet"
            counts[str(file)] = write_parquet(file, target)
            found = [*load_dataset("parquet", data_files=str(target), split="train", cache_dir=scratch)]
        if place := tiny.differs(found, tiny.read(file)):
            wrong[str(file)] = place
    tiny.tell(wrong=wrong, counts=counts, versions={name: version(name) for name in ("datasets", "pyarrow")})


main([Path(word) for word in sys.argv[1:]])
