"""A candidate's files, as whoever judges or records them gets them; imports nothing that is slow."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from passagent.errors import UsageError

MANIFEST = "sorted_output_pass_rule_names.json"


@dataclass(frozen=True)
class Candidate:
    """A `pass_dir/`: relative file name to text, the manifest among them."""

    files: dict[str, str]

    @classmethod
    def from_dir(cls, path: str | Path) -> Candidate:
        """Read a pass_dir. Raises UsageError if it is missing, empty or holds a file that is no text."""
        root = Path(path)
        if not root.is_dir():
            raise UsageError(f"{root}: no such pass directory")
        files = {}
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.suffix in {".py", ".json"} and "__pycache__" not in file.parts:
                try:
                    files[file.relative_to(root).as_posix()] = file.read_text(encoding="utf-8-sig")
                except (UnicodeDecodeError, OSError) as error:
                    raise UsageError(f"{file}: cannot be read as text ({error})") from error
        if not files:
            raise UsageError(f"{root}: holds no .py file and no {MANIFEST}")
        return cls(files)

    def write(self, path: str | Path) -> None:
        """Write the files under `path`, which is created."""
        for name, text in self.files.items():
            target = Path(path) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    @functools.cached_property
    def key(self) -> str:
        """sha256 of names and contents: equal for equal candidates."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()
