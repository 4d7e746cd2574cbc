"""Record a candidate on a task. Its host code runs in another process, whose answer is read as data."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.target import uses_triton
from passagent.kernels.layout import strides
from passagent.plan.arguments import Device
from passagent.plan.check import PlanError
from passagent.plan.convert import bound_argument
from passagent.plan.messages import (
    MOST_ANSWER,
    Failing,
    Recorded,
    RecordingAnswer,
    Refusal,
    Request,
    Subgraph,
    TensorMeta,
    as_line,
)
from passagent.plan.model import Recording
from passagent.plan.recorded_pattern import Bindings, check_calls, replace_calls
from passagent.plan.recorder_process import RECORDING
from passagent.sandbox.child import Ending, ForkServer
from passagent.sandbox.limits import crowding
from passagent.sandbox.sandbox import Limits
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import LibraryRule, Task
from passagent.tasks.reader import Subgraph as TaskSubgraph

if TYPE_CHECKING:
    from passagent.evaluator.captures import KeptGraph

LIMITS = Limits(memory=16 << 30, file=64 << 20, scratch=64 << 20, files=4096, cpu_s=60, threads=64)
WALL_S = 35.0
"""Real time that a recording may take: it waits for nothing, but the machine may be busy."""
_MALFORMED = "its plan is not well formed"


def record(
    process: ForkServer,
    candidate: Candidate,
    subgraphs: Sequence[Subgraph],
    device: str,
    facts: dict[str, int | str],
    library: LibraryRule = "all",
) -> Recorded | Refusal:
    """The plans of a candidate on `subgraphs` for `device` (`cpu` or `cuda`), or why there are none.

    `facts`: of the device (facts.device_facts); `library`: the operators of torch that they may call.
    Raises InfrastructureError.
    """
    request = Request(
        files=candidate.files,
        device="cpu" if device == "cpu" else "cuda",
        facts=facts,
        library=library,
        subgraphs=list(subgraphs),
    )
    sent = request.model_dump_json().encode()
    if uses_triton(candidate):
        process.load("passagent.plan.launches")
    raw, ended = process.run(RECORDING, sent, LIMITS, WALL_S * crowding(), MOST_ANSWER)
    return read_answer(raw, request) if raw else _unanswered(ended, is_late=raw is None)


def read_answer(raw: bytes, request: Request) -> Recorded | Refusal:
    """An answer to a request, read as data: what is not well formed is refused, nothing is run."""
    if len(raw) > MOST_ANSWER:
        return Refusal(message=f"its plans are larger than {MOST_ANSWER >> 20} MiB")
    try:
        answer = RecordingAnswer.model_validate_json(raw).answer
        if isinstance(answer, Recorded):
            _check_fits(answer, request)
            return answer
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][2:])
        return Refusal(message=as_line(f"{_MALFORMED}: {where}: {first['msg']}"))
    except Exception as error:  # what nobody thought of is the answer's fault, too
        return Refusal(message=as_line(f"{_MALFORMED}: {error}"))
    refusals = [
        refusal if refusal.file in request.files else refusal.model_copy(update={"file": "", "line": 0})
        for refusal in (answer, *answer.others)
    ]
    return refusals[0].model_copy(update={"others": tuple(refusals[1:])})


def _check_fits(answer: Recorded, request: Request) -> None:
    """Raise ValueError, PlanError or MalformedPattern for a recording of something else than was asked."""
    check_fits(answer.recording, request.subgraphs, request.device)
    if not all(recorded.file in request.files for recorded in answer.recording.passes):
        raise ValueError("a pass is of a file that the candidate does not have")
    names = {subgraph.name for subgraph in request.subgraphs}
    if not all(failure.subgraph in names for failure in answer.failed):
        raise ValueError("it fails on other subgraphs")


def check_fits(recording: Recording, subgraphs: Sequence[Subgraph], device: str) -> None:
    """Raise PlanError for a recording of other subgraphs or places in them, or for another device."""
    if [subgraph.name for subgraph in recording.subgraphs] != [subgraph.name for subgraph in subgraphs]:
        raise PlanError("it is of other subgraphs")
    if recording.device != device:
        raise PlanError(f"it is for {recording.device}")
    passes = check_calls(recording)
    for recorded, subgraph in zip(recording.subgraphs, subgraphs, strict=True):

        def replacement(position: int, bindings: Bindings, calls: Any = recorded.calls) -> Any:
            # any callable will do: replace_calls checks the places, and nothing is called
            return check_fits, tuple(bound_argument(part, bindings) for part in calls[position].arguments)

        replace_calls(load_graph(subgraph.nodes).graph, passes, recorded.calls, replacement)


def _unanswered(end: Ending, is_late: bool) -> Refusal:
    status = end.code
    failing: Failing = "runtime_error"
    if is_late:
        failing = "timeout"
        how = "took too long; host code waits for nothing"
    elif end.cpu_s >= LIMITS.cpu_s - 1 and status < 0:
        failing = "timeout"
        how = (
            f"used its {LIMITS.cpu_s} s of processor time; host code decides on launches and computes nothing"
        )
    elif status < 0:
        how = f"ended by {signal.Signals(-status).name}"
    else:
        how = f"ended by itself with code {status}"
    return Refusal(status=failing, message=f"ended without an answer: it {how}")


def subgraphs_of(task: Task, device: str) -> list[Subgraph]:
    """The recording process's view of a task: graphs and the inputs' metadata.

    Where there is no CUDA, graphs are captured on the CPU. Raises PassagentError if a graph then names a
    device.
    """
    import torch

    from passagent.evaluator.captures import graph_of
    from passagent.tasks.module import full_device

    where = full_device(device) if torch.cuda.is_available() else "cpu"
    subgraphs = []
    for subgraph in task.subgraphs:
        graph = graph_of(subgraph, where)
        if where == "cpu" != device and '{"device":' in json.dumps(graph.nodes):
            raise PassagentError(
                f"{subgraph.name}: its graph names the device, and only a machine with CUDA can capture it; "
                "use --device cpu, or such a machine"
            )
        subgraphs.append(seen(subgraph, graph, device))
    return subgraphs


def seen(subgraph: TaskSubgraph, graph: KeptGraph, device: str) -> Subgraph:
    """A subgraph as the recording process sees it on `device`: its graph and the inputs' metadata."""
    from passagent.tasks.inputs import draw_one

    inputs: list[TensorMeta | int | float] = []
    for meta in subgraph.inputs:
        if meta.is_python_scalar:
            inputs.append(draw_one(meta, 0, 0))
            continue
        stays = subgraph.home == "cuda" and meta.device.startswith("cpu")
        stride = list(strides(meta.shape))
        dtype = str(meta.dtype).removeprefix("torch.")
        where: Device = "cpu" if stays or device == "cpu" else "cuda"
        inputs.append(TensorMeta(shape=list(meta.shape), stride=stride, dtype=dtype, device=where))
    return Subgraph(name=subgraph.name, nodes=graph.nodes, order=graph.order, inputs=inputs)
