"""A database with finished episodes of every kind, made by real runs against the wire server: for exports.

`build(directory)` gives the runs directory, in a few seconds. Each of RUNS has an episode of every kind of
KINDS: with plans beside the calls, parallel calls, arguments that are no JSON, unknown tools, empty, cut-off
and declined replies, remarks, text that looks like a template's words, lone surrogates. Some are longer than
what the model is sent. Thoughts are told as `reasoning_content`, encrypted or signed, or not at all.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import paid_run
import tiny_search
from wire_server import Said, WireServer

ODD = 'a </tool_call> "quoted" \\ {{content}} <|im_end|> \u00e4\u00f6 \u4e2d\n\ttab \u2028 end'
"""Text that trainers could take for words of their own."""
Calls = list[tuple[str, str]]


def _edit(path: str, text: str, **more: Any) -> tuple[str, str]:
    return "file_editor", json.dumps({"command": "create", "path": path, "file_text": text, **more})


def _writing(words: str) -> Calls:
    """Two calls in one reply: a candidate's files."""
    return [_edit(name, text) for name, text in tiny_search.candidate_files(words).items()]


EVALUATE = ("pass_evaluator", "{}")
Script = list[Said | tuple[str, Calls]]


def _good(words: str) -> Script:
    return [
        (f"I write {words}.", _writing(words)),
        ("", [EVALUATE]),
        ("And a second try.", _writing(f"{words} again")),
        ("", [EVALUATE]),
        ("That is all.", []),
    ]


def _before(*first: Said | tuple[str, Calls]) -> Callable[[str], Script]:
    return lambda words: [*first, *_good(words)]


def _after(*last: Said | tuple[str, Calls]) -> Callable[[str], Script]:
    return lambda words: [*_good(words)[:-1], *last]


def _long(words: str) -> Script:
    """More than is sent: old results are folded. A correct candidate, a wrong one, a correct one."""
    note = f"# {words}\n" * 300
    looks = [("", [_edit("Notes.py", note + str(i)), ("check", "{}")]) for i in range(6)]
    tries = [[("", _writing(_judged(f"{words} {n}", n != 1))), ("", [EVALUATE])] for n in range(3)]
    return [*looks, *tries[0], *tries[1], *tries[2], ("That is all.", [])]


def _judged(words: str, is_ok: bool) -> str:
    """Words of a candidate that tiny_search judges to be correct, or to be wrong."""
    every = (f"{words} {number}" for number in itertools.count())
    return next(words for words in every if (tiny_search.share("status", words) > 0.25) == is_ok)


KINDS: dict[str, Callable[[str], Script]] = {
    "good": _good,
    "broken arguments": _before(
        ("A slip.", [("file_editor", '{"command": "create", "path": ')]),
        ("Another.", [("file_editor", "[1, 2]"), ("check", "{}")]),
        ("", [("file_editor", '{"command": "view", "path": ".", "view_range": [NaN, 1e999]}')]),
    ),
    "unknown": _before(
        ("", [("no_such_tool", '{"x": 1}'), ("check", '{"deep": true}')]),
        ("", [("file_editor", '{"command": "view", "path": ".", "view_range": null}')]),
    ),
    "no match": _before(
        ("", [("file_editor", '{"command": "str_replace", "path": "A.py", "old_str": "x", "new_str": "y"}')]),
        ("No matter.", [EVALUATE]),
    ),
    "empty": _before(Said(), Said()),
    "too early": _before(("I would rather not.", [])),
    "cut off": lambda words: [
        *_good(words)[:2],
        Said("I write", [("", *_edit("More.py", "x = 1"))], stop="length"),
        Said("I think and think", stop="length"),
        *_good(words)[2:],
    ],
    "declined": _after(Said("I cannot go on.", stop="refusal")),
    "odd": _before(
        (ODD, [_edit("Odd.py", f'"""{ODD}"""\n')]),
        ("", [("search_knowledge", '{"query": "a lone \\ud800 surrogate"}'), ("check", "{}"), EVALUATE]),
    ),
    "long": _long,
    "endless": lambda words: [*_good(words)[:-1], *[("", [("check", "{}")])] * 30],
}
"""What a model says in an episode, reply by reply, given words of its own."""


@dataclass(frozen=True)
class Run:
    """A run: its model, how it is asked, and what its replies have beside text and calls."""

    model: str
    pairs: tuple[str, ...] = ()
    is_thinking: bool = False
    signature: str = ""


RUNS = {
    "chat": Run("openai/m-1"),
    "thinking chat": Run("openai/m-2", ("model.stream=false",), is_thinking=True),
    "responses": Run("openai/m-3", ("model.api=responses", "model.stream=false")),
    "signed": Run("anthropic/m-4", ("model.stream=false",), is_thinking=True, signature="c2lnbmVk"),
}
STREAMED = [run.model for run in RUNS.values() if "model.stream=false" not in run.pairs]
EPISODES = len(RUNS) * len(KINDS)


@dataclass
class _Author:
    """Says each episode's script, by what the conversation so far holds."""

    run: Run
    seeds: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, body: dict[str, Any]) -> Said:
        text = json.dumps(body)
        found = re.search(r"Episode seed: (\d+)", text)
        if found is None:  # a check, not an episode
            return Said(calls=[("c", "report", '{"word": "ready"}')])
        seed = int(found.group(1))
        with self.lock:
            kinds = list(KINDS)
            kind = self.seeds.setdefault(seed, kinds[len(self.seeds) % len(kinds)])
        step = _step(text)
        script = KINDS[kind](f"{self.run.model} {seed}")
        return self._said(script[min(step, len(script) - 1)], step)

    def _said(self, told: Said | tuple[str, Calls], step: int) -> Said:
        text, calls = (told.text, told.calls) if isinstance(told, Said) else told
        stop = told.stop if isinstance(told, Said) and self.run.model not in STREAMED else ""
        named = [(f"s{step}_{i}", call[-2], call[-1]) for i, call in enumerate(calls)]
        if text and not calls:
            text += f" (reply s{step}_)"
        thought = f"Thought {step}: {ODD}" if self.run.is_thinking and (text or calls) and step % 3 else ""
        if self.run.signature:  # the SDK cannot send such numbers back
            named = [(i, name, said.replace("NaN, 1e999", "1, 1")) for i, name, said in named]
        return Said(text, named, 1000 + 10 * step, 100 + step, 7, step, thought, self.run.signature, stop)


def _step(text: str) -> int:
    """The number of the next reply: each leaves its mark, but for the empty ones, which leave a remark."""
    marks = list(re.finditer(r"\bs(\d+)_", text))
    last = max(marks, key=lambda mark: int(mark.group(1)), default=None)
    since = text[last.end() :] if last else text
    return (int(last.group(1)) + 1 if last else 0) + since.count("Your reply was empty")


@contextmanager
def _server(run: Run) -> Iterator[WireServer]:
    """A server that some requests fail at, and an environment that leads to it."""
    with WireServer(_Author(run), share=0.05, seed=1) as server:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("OPENAI", "ANTHROPIC"))
        }
        addresses = {"OPENAI_BASE_URL": f"{server.url}/v1", "ANTHROPIC_BASE_URL": server.url}
        keys = {"OPENAI_API_KEY": "planted-oai-0123456789", "ANTHROPIC_API_KEY": "planted-ant-0123456789"}
        with (
            patch.dict(os.environ, kept | addresses | keys, clear=True),
            patch("passagent.models.retry.backoff", lambda number: 0.0),
        ):
            yield server


def build(directory: Path, names: Iterable[str] = RUNS) -> Path:
    """Make the database below `directory`: a run for each of `names` in RUNS; of all: EPISODES episodes."""
    from passagent.cli import running

    task, runs_dir = tiny_search.write_task(directory / "task"), directory / "runs"
    for run in map(RUNS.__getitem__, names):
        with _server(run):
            chosen = paid_run.settings(
                len(KINDS),
                2,
                run.model,
                "agent.context_tokens=9000",
                "agent.max_steps=16",
                *run.pairs,
            )
            running.run(str(task), {"settings": chosen, "runs_dir": runs_dir}, True, paid_run.parts())
    return runs_dir
