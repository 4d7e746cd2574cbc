"""An export on disk: the format's own files, where each of their rows comes from, and a card.

The caller writes it beside its final name, so that nobody finds a half of one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from jinja2 import StrictUndefined, Template

from passagent import __version__
from passagent.agent.tokens import tokens as estimated_tokens
from passagent.data.export.example import Example, Row
from passagent.data.export.formats import Format
from passagent.errors import UsageError

PROVENANCE, MANIFEST, CARD = "provenance.jsonl", "export.manifest", "README.md"
_COUNTED = {
    "model": "Models",
    "device": "Devices",
    "evaluator_version": "Evaluators",
    "task": "Source tasks",
}
"""Columns whose values the card counts, and its titles for them."""
_MOST = 40
"""Values of a column that the card lists; the others are in provenance.jsonl."""


@dataclass
class Summary:
    """The figures of an export, for the card and for `passagent show`."""

    counted_by: str
    """The way in which tokens are counted."""
    examples: int = 0
    rows: int = 0
    files: Counter[str] = field(default_factory=Counter)
    """Rows of each data file; of documents, of the directory."""
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Examples by the values of columns."""
    replies: int = 0
    trained: int = 0
    """Replies that are trained."""
    without_reasoning: int = 0
    """Trained replies whose reasoning is not known."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Percentiles of the examples' lengths."""


class Writer:
    """Writes examples into an open directory, one at a time."""

    def __init__(self, directory: Path, form: Format, options: Mapping[str, Any]) -> None:
        """`options`: of them `tokenizer` (see _token_counter). Raises UsageError."""
        self._count, counted_by = _token_counter(options["tokenizer"])
        self.summary = Summary(counted_by=counted_by)
        self._directory, self._form = directory, form
        self._open: dict[str, IO[str]] = {}
        self._lengths: list[int] = []

    def add(self, example: Example, prefix: str = "") -> None:
        """Write an example's rows; `prefix`: of the names of files of their own."""
        tokens = self._length(example)
        for file, row in self._form.rows(example):
            self._add_row(example, row, prefix + file, tokens)
        if prefix:
            return
        summary = self.summary
        summary.examples += 1
        for name in _COUNTED:
            summary.counts[name][str(example.columns[name])] += 1
        trained = [turn for turn in example.replies if turn.is_trained]
        summary.replies += len(example.replies)
        summary.trained += len(trained)
        summary.without_reasoning += sum("reasoning_content" not in turn.message for turn in trained)
        self._lengths.append(tokens)

    def _add_row(self, example: Example, row: Row, file: str, tokens: int) -> None:
        """Write a row that comes of `example`, and where it comes from."""
        text = json.dumps(row, ensure_ascii=False)
        is_lines = file.endswith(".jsonl")
        self.summary.files[file if is_lines else "*.json"] += 1
        if is_lines:
            self._append(file, text)
        else:
            (self._directory / file).write_text(text + "\n", encoding="utf-8")
        origin = example.provenance() | {
            "tokens": tokens,
            "nodes": [
                node.model_dump(include={"node", "files", "status", "as_score"})
                for node in example.trajectory.nodes
            ],
            "file": file,
            "line": self.summary.files[file] if is_lines else 1,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        self._append(PROVENANCE, json.dumps(origin))
        self.summary.rows += 1

    def _append(self, name: str, text: str) -> None:
        if name not in self._open:
            self._open[name] = (self._directory / name).open("w", encoding="utf-8", newline="\n")
        self._open[name].write(text + "\n")

    def _length(self, example: Example) -> int:
        """Count the tokens of all that a chat template would render, its own marks left out."""
        texts = [json.dumps(example.tools)] if example.tools else []
        for turn in example.turns:
            texts += [turn.message["content"], turn.message.get("reasoning_content", "")]
            calls = [call["function"] for call in turn.message.get("tool_calls", ())]
            texts += [f"{call['name']} {json.dumps(call['arguments'])}" for call in calls]
        return sum(self._count(text) for text in texts if text)

    def finish(self, command: str) -> Summary:
        """Write tables, manifest, card and what else the trainer reads; `command`: for the card."""
        for file in self._open.values():
            file.close()
        summary, form, ordered = self.summary, self._form, sorted(self._lengths)
        summary.tokens = {
            name: ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
            for name, share in (("50%", 50), ("90%", 90), ("99%", 99), ("longest", 100))
        }
        manifest = {"command": command, "format": form.name, **vars(summary)}
        # in Markdown; it begins with what the Hugging Face hub reads
        text = (Path(__file__).parent / "card.md.j2").read_text(encoding="utf-8")
        card = Template(text, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined).render(
            form=form,
            summary=summary,
            command=command,
            stems=[name.removesuffix(".jsonl") for name in summary.files if not name.startswith("*")],
            counted=_COUNTED,
            most=_MOST,
            version=__version__,
        )
        extra = form.extra_files([name for name in summary.files if name in form.files]) | {
            MANIFEST: json.dumps(manifest, indent=1) + "\n",
            CARD: card.strip() + "\n",
        }
        for name, text in extra.items():
            (self._directory / name).write_text(text, encoding="utf-8")
        return summary


def _token_counter(tokenizer: str | None) -> tuple[Callable[[str], int], str]:
    """Return a function that counts a text's tokens, and its name; an estimate without a tokenizer.

    tokenizer: a `tokenizer.json` file or a directory that holds one. Raises UsageError.
    """
    if tokenizer is None:
        return estimated_tokens, "an estimate: 4 characters a token"
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # it raises bare Exceptions
        raise UsageError(f"{path}: not a tokenizer that can be read ({error})") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids), str(path)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of an export. Raises UsageError if `directory` is none."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        return manifest
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{directory}: not an export of passagent (no {MANIFEST} that can be read)"
        ) from error


def read_rows(directory: Path) -> Iterator[tuple[Row, str | None]]:
    """Read each row's provenance and its text; None: it is not there. Raises UsageError."""
    path = directory / PROVENANCE
    try:
        origins = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    with ExitStack() as stack:
        files: dict[str, IO[str]] = {}
        for row in origins:
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
