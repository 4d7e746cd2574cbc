"""Why a candidate failed, in one line: the first error, with the candidate's own file and line if known."""

from __future__ import annotations

from collections.abc import Mapping

from passagent.agent.excerpt import places
from passagent.evaluator.result import Evaluation, GraphResult


def first_error(evaluation: Evaluation, files: Mapping[str, str]) -> str:
    """`Fused.py:14: error: 'b' was not declared`, of an evaluation of `files`; empty if correct."""
    if evaluation.status == "ok":
        return ""
    if evaluation.violations:
        first = evaluation.violations[0]
        return _one_line(f"{first.file}:{first.line}: {first.message} (rule {first.rule})")
    failed = [graph for graph in evaluation.graphs if graph.status != "ok"]
    graph = next((graph for graph in failed if graph.status == evaluation.status), None)
    if graph and graph.status == "mismatch" and graph.mismatches:
        return _mismatch(graph, files)
    if graph and graph.status == "wrong_result" and graph.worst:
        return _one_line(f"{graph.name}: {graph.worst_element}{f'; {graph.error}' if graph.error else ''}")
    return _error((graph.error if graph else None) or evaluation.error or "no reason was recorded", files)


def _mismatch(graph: GraphResult, files: Mapping[str, str]) -> str:
    """How far the pass came that came furthest, and where its pattern is."""
    best = max(graph.mismatches, key=lambda one: one.matched_nodes / max(one.pattern_nodes, 1))
    file = f"{best.pass_name}.py"
    lines = files.get(file, "").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("def pattern")), None)
    against = f", held against {best.graph_node}" if best.graph_node else ""
    return _one_line(
        f"{file}{f':{line}' if line else ''}: the pattern matched {best.matched_nodes} of "
        f"{best.pattern_nodes} nodes, not {best.pattern_node}{against}: {best.reason}"
    )


def _error(text: str, files: Mapping[str, str]) -> str:
    """The line of a compiler's or an interpreter's message that says what is wrong, after the place meant."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [text]
    said = next((line for line in lines if "error: " in line), lines[0])
    if said.endswith(":") and said != lines[-1]:
        said = f"{said} {lines[-1]}"  # what is between quotes the source
    place = next((f"{file}:{line}" for file, line in places(text, files)), None)
    return _one_line(f"{place}: {said.removesuffix(f' ({place})')}" if place else said)


def _one_line(text: str, limit: int = 220) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
