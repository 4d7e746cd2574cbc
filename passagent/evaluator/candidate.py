"""A candidate's files, as whoever judges or records them gets them; imports nothing that is slow."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from passagent.errors import UsageError

MANIFEST = "sorted_output_pass_rule_names.json"
PLAN = "plan.json"
"""In place of a manifest: the files are no Python, but what was recorded of it (plan/artefact.py)."""
PLANS = "plans.pass"
"""The directory of such files beside a candidate's own."""
HELPER = "passagent_kernels.py"
"""The file beside a pass that stands for `passagent.kernels` where passagent is not installed."""
HELPER_HEAD = "# SPDX-License-Identifier: Apache-2.0"
"""Its first line."""
_SUFFIXES = {".py", ".json"}
_OF_PLANS = {".py", ".json", ".ttir", ".cpp", ".cu", ".b64"}


@dataclass(frozen=True)
class Candidate:
    """A `pass_dir/`: relative file name to text, the manifest among them; or plans that were recorded."""

    files: dict[str, str]

    @classmethod
    def from_dir(cls, path: str | Path) -> Candidate:
        """Read a pass_dir. Raises UsageError if it is missing, empty or holds a file that is no text."""
        root = Path(path)
        if not root.is_dir():
            raise UsageError(f"{root}: no such pass directory")
        files = {}
        suffixes = _OF_PLANS if (root / PLAN).is_file() else _SUFFIXES
        for file in sorted(root.rglob("*")):
            parts = file.relative_to(root).parts
            if file.is_file() and file.suffix in suffixes and not {"__pycache__", PLANS} & set(parts):
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

    @property
    def is_plans(self) -> bool:
        """Its host code was recorded before: nothing of it is Python that runs."""
        return PLAN in self.files and MANIFEST not in self.files

    @functools.cached_property
    def key(self) -> str:
        """sha256 of names and contents: equal for equal candidates."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()
