"""Which passes of a candidate matter, and a candidate with only some of its passes."""

from __future__ import annotations

import ast
import json

from passagent.evaluator.candidate import MANIFEST
from passagent.plan.model import Recording, flat

Programs = dict[str, tuple[str, ...]]
"""What runs in each subgraph: the plans of its calls, by their digests."""


def passes_of(files: dict[str, str]) -> list[str]:
    """The passes that a candidate's manifest names, in its order."""
    return [str(name) for name in json.loads(files[MANIFEST])]


def served(recording: Recording) -> dict[str, list[str]]:
    """For each pass the subgraphs that it is called in; none for one that matches nothing."""
    return {
        one.name: [
            subgraph.name
            for subgraph in recording.subgraphs
            if any(call.number == number for call in subgraph.calls)
        ]
        for number, one in enumerate(recording.passes)
    }


def programs(recording: Recording) -> Programs:
    """Equal for candidates that do the same in every subgraph, however their text reads."""
    return {
        subgraph.name: tuple(
            recording.passes[call.number].plans[call.plan].digest() for call in subgraph.calls
        )
        for subgraph in recording.subgraphs
    }


def launches(recording: Recording) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """For each subgraph the kernels that its calls launch, by their digests, and their grids."""
    return {
        subgraph.name: [
            (step.kernel, step.grid)
            for call in subgraph.calls
            for step in flat(recording.passes[call.number].plans[call.plan].steps)
            if step.step == "launch"
        ]
        for subgraph in recording.subgraphs
    }


def only(files: dict[str, str], names: list[str]) -> dict[str, str]:
    """The candidate with only these passes, in the manifest's order, and the files that they need.

    A helper is needed if a file that stays imports it, or names it where it is no Python.
    """
    kept = [name for name in passes_of(files) if name in names]
    found = {f"{name}.py": files[f"{name}.py"] for name in kept}
    while True:
        imported = {word for name, text in found.items() if name.endswith(".py") for word in _imported(text)}
        texts = "\n".join(found.values())
        more = {
            name: text
            for name, text in files.items()
            if name not in found and name != MANIFEST
            if (_stem(name) in imported if name.endswith(".py") else _stem(name) in texts)
        }
        if not more:
            return found | {MANIFEST: json.dumps(kept) + "\n"}
        found |= more


def _imported(text: str) -> set[str]:
    """Every word of the module's imports: modules, packages and what is taken from them."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {word for name in names for word in name.split(".")}
    return found


def _stem(name: str) -> str:
    """How other files call a file: a package by its directory's name."""
    parts = name.rsplit(".", 1)[0].split("/")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
