"""An export on disk: the format's own files, where each of their rows comes from, and a card.

It is written beside its final name and takes that when it is whole, so that nobody finds a half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from passagent.data.dataset import lengths
from passagent.data.dataset.columns import COLUMNS
from passagent.data.dataset.example import Example
from passagent.data.dataset.formats import Format
from passagent.data.dataset.formats.common import raw_arguments
from passagent.errors import UsageError
from passagent.system.faults import os_fault

PROVENANCE, MANIFEST, CARD = "provenance.jsonl", "export.manifest", "README.md"
_OF_EXAMPLE = (*COLUMNS, "subgraphs", "reasoning")
"""What provenance says of an example."""


@dataclass
class Summary:
    """What was written, for the card and for `stats`."""

    examples: int = 0
    rows: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Rows of each data file; of documents, of the directory."""
    models: dict[str, int] = field(default_factory=dict)
    """Examples of each."""
    devices: dict[str, int] = field(default_factory=dict)
    evaluators: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    sequences: int = 0
    """Operator sequences."""
    replies: int = 0
    trained: int = 0
    """Replies that are trained."""
    without_reasoning: int = 0
    """Trained replies whose reasoning is not known."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Percentiles of the examples' lengths."""
    cut: dict[str, int] = field(default_factory=dict)
    """Examples that a context of so many tokens would cut."""
    counted_by: str = ""


class Writer:
    """Writes examples into an open directory, one at a time."""

    def __init__(self, directory: Path, form: Format, count: lengths.Count, counted_by: str) -> None:
        self.summary = Summary(counted_by=counted_by)
        self._directory, self._form, self._count = directory, form, count
        self._open: dict[str, IO[str]] = {}
        self._stack = ExitStack()
        self._lengths: list[int] = []
        self._tasks: set[str] = set()
        self._sequences: set[str] = set()

    def add(self, example: Example, apart: str = "") -> None:
        """Write an example's rows; `apart`: in files of their own, whose names begin with this."""
        tokens = lengths.length(example, self._count)
        for row in self._form.rows(example):
            self.add_row(example, row, apart + self._form.file_of(row), tokens)
        if not apart:
            self._take_in(example, tokens)

    def add_row(self, example: Example, row: dict[str, Any], file: str, tokens: int | None = None) -> None:
        """Write a row that comes of `example`, and where it comes from."""
        nodes = [
            {"node": node.node, "files": node.files, "status": node.status, "as_score": node.as_score}
            for node in example.trajectory.nodes
        ]
        told = {name: example.columns[name] for name in _OF_EXAMPLE} | {"tokens": tokens, "nodes": nodes}
        told["raw_arguments"] = raw_arguments(example)
        place = self._write(file, json.dumps(row, ensure_ascii=False))
        self._append(PROVENANCE, json.dumps({**told, **place}))
        self.summary.rows += 1

    def _write(self, name: str, text: str) -> dict[str, Any]:
        """Write a row; where it is and its sha256."""
        files = self.summary.files
        if self._form.is_lines or name.endswith(".jsonl"):
            files[name] = files.get(name, 0) + 1
            self._append(name, text)
            place = {"file": name, "line": files[name]}
        else:
            (self._directory / name).write_text(text + "\n", encoding="utf-8")
            files["*.json"] = files.get("*.json", 0) + 1
            place = {"file": name, "line": 1}
        return place | {"sha256": hashlib.sha256(text.encode()).hexdigest()}

    def _append(self, name: str, text: str) -> None:
        if name not in self._open:
            path = self._directory / name
            self._open[name] = self._stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        self._open[name].write(text + "\n")

    def _take_in(self, example: Example, tokens: int) -> None:
        summary, columns = self.summary, example.columns
        summary.examples += 1
        for counts, name in (
            (summary.models, columns["model"]),
            (summary.devices, columns["device"]),
            (summary.evaluators, columns["evaluator_version"] or "none"),
        ):
            counts[name] = counts.get(name, 0) + 1
        trained = [turn for turn in example.replies if turn.is_trained]
        summary.replies += len(example.replies)
        summary.trained += len(trained)
        summary.without_reasoning += sum(turn.reasoning is None for turn in trained)
        self._lengths.append(tokens)
        self._tasks.add(columns["task_key"])
        self._sequences.add(" ".join(columns["operators"]))
        summary.tasks, summary.sequences = len(self._tasks), len(self._sequences)

    def _of_format(self) -> list[str]:
        """The data files that the format itself names."""
        return [name for name in self.summary.files if name in self._form.files]

    def finish(self, asked: dict[str, Any]) -> Summary:
        """Write what the trainer reads beside the rows, and the manifest with what was `asked` for."""
        self._stack.close()
        summary = self.summary
        summary.tokens = lengths.percentiles(self._lengths)
        summary.cut = {str(most): sum(n > most for n in self._lengths) for most in lengths.CONTEXTS}
        for name, text in self._form.extra_files(self._of_format()).items():
            (self._directory / name).write_text(text, encoding="utf-8")
        manifest = {**asked, "format": self._form.name, **asdict(summary)}
        (self._directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        return summary


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to write into; `path` is its name once all went well. Raises UsageError if that exists."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path}: exists already; choose another place with --out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        try:
            yield fresh
            for file in fresh.iterdir():
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
            fresh.chmod(0o777 & ~_umask())
            fresh.rename(path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise os_fault(error, path, "--out") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_manifest(directory: Path) -> dict[str, Any]:
    """What an export says of itself. Raises UsageError if `directory` is none."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        return manifest
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{directory}: not an export of passagent (no {MANIFEST} that can be read)"
        ) from error


def provenance(directory: Path) -> Iterator[dict[str, Any]]:
    """Of each row where it is and where it comes from. Raises UsageError."""
    path = directory / PROVENANCE
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def texts(directory: Path, rows: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Each row of provenance with its text; None: it is not there."""
    with ExitStack() as stack:
        files: dict[str, IO[str]] = {}
        for row in rows:
            name = row["file"]
            if name not in files:
                path = directory / name
                if not path.is_file() or path.resolve().parent != directory.resolve():
                    yield row, None
                    continue
                files[name] = stack.enter_context(open(path, encoding="utf-8"))
            yield row, files[name].readline().removesuffix("\n") or None
            if not name.endswith(".jsonl"):
                files.pop(name).close()
