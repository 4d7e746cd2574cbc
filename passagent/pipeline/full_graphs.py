"""Full graphs on disk: directories of GraphNet's layout."""

from __future__ import annotations

import hashlib
from pathlib import Path

from passagent.errors import UsageError
from passagent.pipeline.units import Unit
from passagent.tasks.reader import FILES


def find_samples(places: list[str]) -> dict[str, Path]:
    """Name and directory of each sample in or below the directories, sorted. Raises UsageError."""
    found: dict[str, Path] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise UsageError(f"{place}: no such directory; give GraphNet's samples or a directory of them")
        paths = sorted(file.parent for file in place.rglob("model.py"))
        if not paths:
            raise UsageError(f"{place}: holds no sample, which is a directory with model.py")
        for path in paths:
            found[str(path.resolve())] = path
    return {"/".join(path.resolve().parts[-2:]): path for path in found.values()}


def validation(name: str, path: Path, device: str) -> Unit:
    """The unit that validates a sample."""
    digest = hashlib.sha256()
    for file in FILES:
        content = (path / file).read_bytes() if (path / file).is_file() else b""
        digest.update(f"{file} {len(content)}\n".encode() + content)
    payload = {"path": str(path.resolve()), "files": digest.hexdigest(), "device": device}
    return Unit("validated", name, "passagent.pipeline.sample_validation:validate_sample", payload)
