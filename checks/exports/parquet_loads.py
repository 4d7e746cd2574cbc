"""`python parquet_loads.py FILE...`: each file of JSON lines as parquet, read back by `datasets`.

Numbers with a fraction are compared to nine digits: `datasets` reads them in JSON no more exactly.
"""

import math
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import tiny
from datasets import load_dataset

from passagent.export.formats.parquet import write_parquet


def differs(found, told, where=""):
    """Where two values are not the same; None if they are."""
    if isinstance(found, dict) and isinstance(told, dict) and found.keys() == told.keys():
        pairs = [(found[key], told[key], f"{where}.{key}") for key in told]
    elif isinstance(found, list) and isinstance(told, list) and len(found) == len(told):
        pairs = [(*pair, f"{where}[{place}]") for place, pair in enumerate(zip(found, told, strict=True))]
    elif isinstance(found, float) and isinstance(told, float):
        return None if math.isclose(found, told, rel_tol=1e-9) else where
    else:
        return None if found == told and type(found) is type(told) else where
    return next(filter(None, (differs(*pair) for pair in pairs)), None)


def main(files: list[Path]) -> None:
    wrong, counts = {}, {}
    for file in files:
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch) / "rows.parquet"
            counts[str(file)] = write_parquet(file, target)
            found = [*load_dataset("parquet", data_files=str(target), split="train", cache_dir=scratch)]
        if place := differs(found, tiny.read(file)):
            wrong[str(file)] = place
    tiny.tell(wrong=wrong, counts=counts, versions={name: version(name) for name in ("datasets", "pyarrow")})


main([Path(word) for word in sys.argv[1:]])
