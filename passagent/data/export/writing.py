"""An export on disk: the format's own files, where each of their rows comes from, and a card.

The caller writes it beside its final name, so that nobody finds a half of one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from passagent import __version__
from passagent.agent.tokens import tokens as estimated_tokens
from passagent.data.export.example import Example, raw_arguments
from passagent.data.export.formats import Format
from passagent.data.export.selection import COLUMNS
from passagent.errors import UsageError

PROVENANCE, MANIFEST, CARD = "provenance.jsonl", "export.manifest", "README.md"
_OF_EXAMPLE = (*COLUMNS, "subgraphs", "reasoning")
"""The columns of an example that are in provenance."""
_CONTEXTS = (8_192, 32_768, 131_072, 262_144)
"""Context lengths of today's students, tokens."""
_COUNTED = {
    "model": "Models",
    "device": "Devices",
    "evaluator_version": "Evaluators",
    "task": "Source tasks",
}
"""Columns whose values the card counts, and its titles for them."""
_MOST = 40
"""Values of a column that the card lists; the others are in provenance.jsonl."""

Count = Callable[[str], int]
"""The number of a text's tokens."""


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
    cut: dict[str, int] = field(default_factory=dict)
    """Examples that a context of so many tokens would cut."""


class Writer:
    """Writes examples into an open directory, one at a time."""

    def __init__(self, directory: Path, form: Format, tokenizer: str | None) -> None:
        """`tokenizer`: see token_counter. Raises UsageError."""
        self._count, counted_by = token_counter(tokenizer)
        self.summary = Summary(counted_by=counted_by)
        self._directory, self._form = directory, form
        self._open: dict[str, IO[str]] = {}
        self._stack = ExitStack()
        self._lengths: list[int] = []

    def add(self, example: Example, prefix: str = "") -> None:
        """Write an example's rows; `prefix`: of the names of files of their own."""
        tokens = self._length(example)
        for file, row in self._form.rows(example):
            self.add_row(example, row, prefix + file, tokens)
        if prefix:
            return
        summary = self.summary
        summary.examples += 1
        for name in _COUNTED:
            summary.counts[name][str(example.columns[name])] += 1
        trained = [turn for turn in example.replies if turn.is_trained]
        summary.replies += len(example.replies)
        summary.trained += len(trained)
        summary.without_reasoning += sum(turn.reasoning is None for turn in trained)
        self._lengths.append(tokens)

    def add_row(self, example: Example, row: dict[str, Any], file: str, tokens: int | None = None) -> None:
        """Write a row that comes of `example`, and where it comes from."""
        text = json.dumps(row, ensure_ascii=False)
        is_lines = file.endswith(".jsonl")
        self.summary.files[file if is_lines else "*.json"] += 1
        if is_lines:
            self._append(file, text)
        else:
            (self._directory / file).write_text(text + "\n", encoding="utf-8")
        origin = {name: example.columns[name] for name in _OF_EXAMPLE} | {
            "tokens": tokens,
            "nodes": [
                {"node": node.node, "files": node.files, "status": node.status, "as_score": node.as_score}
                for node in example.trajectory.nodes
            ],
            "raw_arguments": raw_arguments(example),
            "file": file,
            "line": self.summary.files[file] if is_lines else 1,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        self._append(PROVENANCE, json.dumps(origin))
        self.summary.rows += 1

    def _append(self, name: str, text: str) -> None:
        if name not in self._open:
            path = self._directory / name
            self._open[name] = self._stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        self._open[name].write(text + "\n")

    def _length(self, example: Example) -> int:
        """Count the tokens of all that a chat template would render, its own marks left out."""
        texts = [json.dumps(example.tools)] if example.tools else []
        for turn in example.turns:
            texts += [turn.content, turn.reasoning or ""]
            texts += [f"{call.name} {json.dumps(call.arguments)}" for call in turn.calls]
        return sum(self._count(text) for text in texts if text)

    def finish(self, options: dict[str, Any]) -> Summary:
        """Write what the trainer reads beside the rows, the manifest with the `options`, and the card.

        options: `command` and `parquet` (whether there are such files, too).
        """
        self._stack.close()
        summary, form = self.summary, self._form
        ordered = sorted(self._lengths)
        summary.tokens = {
            name: ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
            for name, share in (("50%", 50), ("90%", 90), ("99%", 99), ("longest", 100))
        }
        summary.cut = {str(most): sum(n > most for n in self._lengths) for most in _CONTEXTS}
        extra = form.extra_files([name for name in summary.files if name in form.files])
        manifest = {**options, "format": form.name, **vars(summary)}
        extra |= {
            MANIFEST: json.dumps(manifest, indent=1) + "\n",
            CARD: _card(form, summary, options),
        }
        for name, text in extra.items():
            (self._directory / name).write_text(text, encoding="utf-8")
        return summary


def token_counter(tokenizer: str | None) -> tuple[Count, str]:
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


def _card(form: Format, summary: Summary, options: dict[str, Any]) -> str:
    """Return README.md in Markdown, which begins with what the Hugging Face hub reads."""
    suffix = ".parquet" if options["parquet"] else ".jsonl"
    stems = [name.removesuffix(".jsonl") for name in summary.files if not name.startswith("*")]
    configs = [f"- config_name: {stem}\n  data_files: {stem}{suffix}" for stem in stems]
    ranks = ", ".join(f"{name} {count}" for name, count in summary.tokens.items())
    cuts = ", ".join(f"{count} at {int(most):,} tokens" for most, count in summary.cut.items())
    head = [*(["configs:", *configs] if configs else []), "tags: [passagent, tool-use, compilers]"]
    counts = []
    for column, title in _COUNTED.items():
        values = sorted(summary.counts[column].items())
        lines = [f"- `{value}`: {number} ({number / summary.examples:.0%})" for value, number in values]
        more = [f"- and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        counts.append("\n".join([f"## {title}\n", *lines[:_MOST], *more, ""]))
    return (
        "---\n"
        + "\n".join(head)
        + f"""
---

# Trajectories of compiler-pass search

{summary.examples} examples in {summary.rows} rows of the format `{form.name}` ({form.about}), made by
passagent {__version__}. Each is a conversation in which a model wrote compiler passes for a PyTorch subgraph
and had them judged by passagent's evaluator. Made with:

```
{options["command"]}
```

Of {summary.replies} replies {summary.trained} are trained; for {summary.without_reasoning} of these no
reasoning text is known. A chat template that writes an empty thought for such replies teaches not to think.

Tokens ({summary.counted_by}): {ranks}. Examples that a context length would cut: {cuts}.

`provenance.jsonl` has a line for each row: its file and line, sha256, run, episode, model, evaluator version,
device, the scores of its candidates. `passagent check` holds the data against it.

The graphs stand under the licences of the models that they were recorded from. What a model wrote is subject
to its provider's terms, some of which forbid to train competing models on it.

"""
        + "\n".join(counts)
    )


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of an export. Raises UsageError if `directory` is none."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        return manifest
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{directory}: not an export of passagent (no {MANIFEST} that can be read)"
        ) from error


def provenance(directory: Path) -> Iterator[dict[str, Any]]:
    """Read where each row is and where it comes from. Raises UsageError."""
    path = directory / PROVENANCE
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def texts(directory: Path, rows: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Read the text of each row of provenance; None: it is not there."""
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
