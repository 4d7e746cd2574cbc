"""From a run's winning node to a directory that a person reviews: format, record, describe."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import black

from passagent.config import EvaluatorConfig
from passagent.evaluator.candidate import HELPER, MANIFEST, PLANS, Candidate
from passagent.evaluator.result import Evaluation, GraphResult
from passagent.evaluator.target import uses_triton
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.model import Pass, Recording
from passagent.plan.record import record, subgraphs_of
from passagent.plan.show import recording_text
from passagent.sandbox.child import ForkServer
from passagent.tasks.graphio import operator_name
from passagent.tasks.reader import Task

LANGUAGES = {"cpp": "C++", "cuda": "CUDA C++", "triton": "Triton"}
NEEDS = {"cpp": "a C++ compiler", "cuda": "NVRTC (it comes with torch)", "triton": "triton"}


@dataclass
class Delivery:
    """A candidate as it is written for review."""

    run: str
    node: int
    author: str
    """The model, or where the seed is from."""
    task: str
    """Its name."""
    evaluation: Evaluation
    """The run's, of the candidate as its author wrote it."""
    files: dict[str, str]
    """Relative file names to texts."""
    recording: Recording | None = None
    notes: list[str] = field(default_factory=list)
    """Remarks for the reader, a sentence each."""


def deliver(delivery: Delivery, task: Task, process: ForkServer, config: EvaluatorConfig) -> None:
    """Format the files of `delivery`, and add plans and a README.

    A formatted file has the syntax tree of the author's, so that the run's figures stand. Where nothing can
    be recorded, the files stay as they are and the README says why.
    """
    written = delivery.files
    target = "cpu" if config.device == "cpu" and not uses_triton(Candidate(written)) else "cuda"
    subgraphs = subgraphs_of(task, target)
    try:
        delivery.files = {name: _formatted(name, text) for name, text in written.items()}
    except (black.InvalidInput, black.ASTSafetyError) as error:
        delivery.notes.append(f"The text is as its author wrote it: {str(error).splitlines()[0]}.")
    facts, candidate = device_facts(config.device), Candidate(delivery.files)
    answer = record(process, candidate, subgraphs, target, facts)
    why = ""
    if not isinstance(answer, Recorded):
        why = f"no plan comes of it ({answer.message.splitlines()[0]})"
    elif answer.failed:
        failure = answer.failed[0]
        why = f"no plan comes of it for {failure.subgraph} ({failure.why.message.splitlines()[0]})"
    if why or not isinstance(answer, Recorded):
        delivery.files = written
        delivery.notes = [f"It is as its author wrote it: {why}."]
    else:
        delivery.recording = answer.recording
        delivery.files |= {"plan.txt": recording_text(answer.recording) + "\n"}
        delivery.files |= {f"{PLANS}/{name}": text for name, text in artefact.write(answer.recording).items()}
    delivery.files |= {"README.md": readme(delivery)}


def _formatted(name: str, text: str) -> str:
    if not name.endswith(".py") or name == HELPER:
        return text
    formatted = black.format_str(text, mode=black.Mode())
    black.assert_equivalent(text, formatted)
    return formatted


def figures(evaluation: Evaluation) -> str:
    """`AS 1.234 [1.200, 1.270]`."""
    return f"AS {_interval(evaluation.as_score, evaluation.as_low, evaluation.as_high)}"


def readme(delivery: Delivery) -> str:
    """Return README.md for the directory of these files."""
    evaluation, recording = delivery.evaluation, delivery.recording
    stands_alone, rounds = HELPER in delivery.files, evaluation.protocol.get("rounds")
    pooled = f"geometric mean over {rounds} rounds, as the speedups are; in brackets: the 95% interval"
    by_speedups = "in brackets: with every speedup at an end of its 95% interval"
    parts = [
        f"# Passes for {delivery.task}",
        f"{_passes(delivery.files, recording)}\n\nMeasured on {_device(evaluation)}.",
        f"Eager is 1.0. **{figures(evaluation)}** ({pooled if rounds else by_speedups}), "
        f"dispatch {evaluation.dispatch}, {_versions(evaluation)}. It was measured as the author wrote it; "
        "formatting changed nothing that runs.",
        _table(evaluation.graphs),
    ]
    if recording is not None:
        parts.append("`plan.txt` shows the plans.")
    if delivery.notes:
        parts.append("Good to know:\n\n" + "\n".join(f"- {note}" for note in delivery.notes))
    kinds = _kinds(recording.passes) if recording else []
    needs = ["torch", *(NEEDS[kind] for kind in kinds), *([] if stands_alone else ["passagent.kernels"])]
    dtypes = sorted({graph.dtype for graph in evaluation.graphs})
    parts += [
        "## Use",
        "The passes assume inference: no gradient flows through a replacement. Constants in a pattern are "
        f"part of it. They were measured for {listed(dtypes)}; other shapes and dtypes are not tested.",
        f"At run time the passes need {listed(needs)}. From this directory, with the task's directory for "
        "TASK:\n\n"
        f"```\npassagent eval TASK --pass-dir . --device {evaluation.device}\n```",
    ]
    parts += [
        "## Origin",
        f"It comes from `{delivery.author}`, node {delivery.node} of passagent run {delivery.run}, and was "
        f"written out on {datetime.now(UTC):%Y-%m-%d} (UTC). passagent is under the Apache License 2.0, "
        f"`{HELPER if stands_alone else 'passagent.kernels'}` included. That licence says nothing of this "
        "text, which a model wrote: put it under your project's, if your model provider's terms let you. The "
        "pattern follows the graphs of the task, which have an author of their own.",
    ]
    return "\n\n".join(parts) + "\n"


def _passes(files: dict[str, str], recording: Recording | None) -> str:
    """Return a line for each pass: what it fuses, with which kernels, in how many subgraphs."""
    if recording is None:
        return "\n".join(f"- `{name}.py`" for name in json.loads(files[MANIFEST]))
    lines = []
    for number, recorded in enumerate(recording.passes):
        served = [s for s in recording.subgraphs if any(call.number == number for call in s.calls)]
        names = [operator_name(node.target) for node in recorded.pattern if node.op.startswith("call")]
        fused = dict.fromkeys(name for name in names if name not in ("dropout", "getitem"))
        kinds = " and ".join(LANGUAGES[kind] for kind in _kinds([recorded])) or "views, without a kernel"
        lines.append(
            f"- `{recorded.file}` fuses {listed([*fused])}: {kinds}. "
            f"It serves {len(served)} of the {len(recording.subgraphs)} subgraphs."
            if served
            else f"- `{recorded.file}` matches nothing in the task."
        )
    return "\n".join(lines)


def _table(graphs: Iterable[GraphResult]) -> str:
    rows = [
        "| subgraph | dtype | speedup [95%] | eager ms | ms | exact from t |",
        "|---|---|---|---|---|---|",
    ]
    for graph in graphs:
        speedup = graph.speedup
        interval = _interval(speedup.e2e, speedup.low, speedup.high) if speedup else graph.status
        times = [f"{ms:.4f}" if ms is not None else "-" for ms in (graph.eager_ms, graph.compiled_ms)]
        level = "-" if graph.passes_from_t is None else str(graph.passes_from_t)
        rows.append(f"| {graph.name} | {graph.dtype} | {interval} | {' | '.join(times)} | {level} |")
    return "\n".join(rows)


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "not timed"
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else "")


def _kinds(passes: Iterable[Pass]) -> list[str]:
    kinds = {
        kernel.kind for recorded in passes for plan in recorded.plans for kernel in plan.kernels.values()
    }
    return [kind for kind in LANGUAGES if kind in kinds]


def _device(evaluation: Evaluation) -> str:
    environment = evaluation.environment
    if evaluation.device != "cpu":
        return str(environment.get("gpu", evaluation.device))
    threads = environment.get("threads")
    many = f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""
    return f"{environment.get('cpu', 'a CPU')}{many}"


def _versions(evaluation: Evaluation) -> str:
    versions = [(name, evaluation.environment.get(name)) for name in ("torch", "triton", "python")]
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
