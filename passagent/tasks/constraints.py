"""`passagent tasks check`: is each subgraph runnable and analysable (GraphNet 4.1), or why not.

A kernel that writes constants passes where outputs are constant, or do not depend on the inputs. Such a task
is in order, and may be meant so; robust-kbench's filters on outputs mark it.

On a GPU few large tensors fit: some wait in host memory, and are compared there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from passagent.errors import MachineFault, TaskError
from passagent.sandbox.faults import machine_fault
from passagent.tasks.capture import capture
from passagent.tasks.graphio import MODULES
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module, source_name
from passagent.tasks.reader import Subgraph, check_room, locate, read_subgraph, subgraph_places

LARGE = 256 << 20
"""Bytes from which on a tensor is large. Smaller ones stay where they are: moving them takes time."""
CROWDED = ("cuda",)
"""Types of devices whose memory large tensors leave."""


def set_aside(values: Sequence[Any]) -> list[Any]:
    """The values; in place of large tensors on a GPU, copies in host memory."""
    copies = list[Any]()
    for value in values:
        is_plain = type(value) is torch.Tensor and value.layout == torch.strided
        if is_plain and value.device.type in CROWDED and value.nbytes >= LARGE:
            value = in_host_memory(value)  # noqa: PLW2901
        copies.append(value)
    return copies


def in_host_memory(value: torch.Tensor) -> torch.Tensor:
    """A copy of it there."""
    return value.detach().to("cpu", copy=True).requires_grad_(value.requires_grad)


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Compare like torch.equal; one of large tensors may wait in host memory."""
    return torch.equal(*_together(first, second))


def close(first: torch.Tensor, second: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Compare like torch.allclose, where NaN equals NaN; one of large tensors may wait in host memory."""
    a, b = _together(first, second)
    return torch.equal(a, b) or torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def _together(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on one device: in host memory, if one of them is there."""
    if first.device == second.device:
        return first, second
    return first.detach().cpu(), second.detach().cpu()


TINY = 0.01
"""robust-kbench's least range, standard deviation, and change from inputs to inputs, of outputs."""


def spread(outputs: Sequence[Any]) -> list[str]:
    """Name each way in which the outputs of one call are alike."""
    problems = []
    for output in outputs:
        if not _counts(output):
            continue
        values = output.detach().float()
        low, high = values.aminmax()
        if low == high:
            problems.append("constant output")
        elif float(high - low) < TINY or float(values.std()) < TINY:
            problems.append("outputs close to each other")
    return list(dict.fromkeys(problems))


def _counts(value: Any) -> bool:
    """Return whether there is something to compare: more than one number."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1


def find_difference(
    outputs: Sequence[Any],
    expected: Sequence[Any],
    rtol: float = 1.3e-6,
    atol: float = 1e-5,
    other: str = "the model",
) -> tuple[str, bool]:
    """Say in what the outputs differ from those of `other`, if they do, and whether they are equal bitwise.

    The tolerances are those of float32; times the precision of the dtype over float32's.
    """
    if len(outputs) != len(expected):
        return f"gives {len(outputs)} outputs, {other} {len(expected)}", False
    is_exact = True
    for number, (output, want) in enumerate(zip(outputs, expected, strict=True)):
        if not isinstance(output, torch.Tensor) or not isinstance(want, torch.Tensor):
            if type(output) is not type(want) or output != want:
                return f"output {number} is {output!r}, of {other} {want!r}", False
        elif (output.shape, output.dtype) != (want.shape, want.dtype):
            return f"output {number} is of another shape or dtype than that of {other}", False
        elif not equal(output, want):
            is_exact = False
            is_float = output.is_floating_point()
            scale = torch.finfo(output.dtype).eps / torch.finfo(torch.float32).eps if is_float else 0
            if not close(output, want, rtol * scale, atol * scale):
                return f"output {number} differs from that of {other}", False
    return "", is_exact


SEED = 0
_COPIES = 2
"""Copies of the inputs at a time: each run has its own."""


@dataclass
class CheckResult:
    """One subgraph."""

    name: str
    runnable: bool = False
    """Runs in eager mode, finite, and gives the same result twice."""
    analysable: bool = False
    """Dynamo captures it as one graph of known operators, which computes what the module computes."""
    problems: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    """Why a result on it is worth little. It may be in order all the same."""

    @property
    def ok(self) -> bool:
        """Both."""
        return self.runnable and self.analysable


def check_task(path: str | Path, device: str = "cpu") -> Iterator[CheckResult]:
    """Check every subgraph of the task at `path`.

    Raises as load_task does if they cannot be found, MachineFault for a fault of the machine.
    """
    for place, name in subgraph_places(locate(path)):
        try:
            subgraph = read_subgraph(place, name)
        except TaskError as error:
            yield CheckResult(name, problems=[str(error)])
        else:
            yield check_subgraph(subgraph, device)


def check_subgraph(subgraph: Subgraph, device: str = "cpu") -> CheckResult:
    """Check one subgraph on `device`. Raises MachineFault."""
    file = subgraph.path / "model.py"
    result = CheckResult(subgraph.name)
    try:
        check_room(subgraph, _COPIES)
        module = load_module(subgraph, device)
        inputs = make_inputs(subgraph, device, SEED)
        outputs = set_aside(_run(module, inputs, inputs))
        again = _run(module, inputs, inputs)
    except TaskError as error:
        result.problems.append(str(error))
        return result
    except MachineFault:
        raise
    except Exception as error:
        if fault := machine_fault(error, str(subgraph.path)):
            raise fault from error
        name = source_name(subgraph.path)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        result.problems.append(f"{file}:{lines[-1] if lines else 1}: does not run: {text}")
        return result
    differing, _ = find_difference(outputs, again, other="a second run")
    del again  # its memory is needed
    result.problems += [f"{file}: {differing}"] if differing else []
    # NaN is a problem; an infinity is not, as masks are made of it
    floats = [(i, t) for i, t in enumerate(outputs) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    result.problems += [f"{file}: output {i} has NaN" for i, t in floats if bool(t.isnan().any())]
    result.runnable = not result.problems
    if result.runnable:
        result.weak = spread(outputs)
        if _is_independent(module, inputs, set_aside(make_inputs(subgraph, device, SEED + 1)), outputs):
            result.weak.append("outputs hardly depend on the inputs")
    unknown = _analysable(module, inputs, outputs)
    result.analysable = not unknown
    result.problems += [f"{file}: {problem}" for problem in unknown]
    return result


def _run(module: torch.nn.Module, values: list[Any], inputs: list[Any]) -> list[Any]:
    """The outputs for copies of the values, each on the device of its input."""
    copies = [
        value.to(like.device, copy=True) if isinstance(value, torch.Tensor) else value
        for value, like in zip(values, inputs, strict=True)
    ]
    with torch.no_grad():
        return pytree.tree_leaves(module(*copies))


def _is_independent(
    module: torch.nn.Module, inputs: list[Any], others: list[Any], outputs: list[Any]
) -> bool:
    """Return whether outputs hardly change with the floats among the inputs, of which `others` differ."""
    floats = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    is_changed = any(f and not equal(a, b) for f, a, b in zip(floats, inputs, others, strict=True))
    if not is_changed or not any(map(_counts, outputs)):
        return False
    pairs = [
        _together(a, b) for a, b in zip(outputs, _run(module, others, inputs), strict=True) if _counts(a)
    ]
    return not any(
        a.shape != b.shape or float((a.float() - b.float()).nan_to_num_().abs_().max()) >= TINY
        for a, b in pairs
    )


def _analysable(module: torch.nn.Module, inputs: list[Any], outputs: list[Any]) -> list[str]:
    try:
        captured = capture(module, inputs)
    except TaskError as error:
        return [str(error)]
    nodes = captured.graph_module.graph.nodes
    unknown = [f"operator {node.name}: {reason}" for node in nodes if (reason := unknown_operator(node))]
    if unknown:
        return unknown
    values = [inputs[i] for i in captured.order]
    differing, _ = find_difference(_run(captured.graph_module, values, values), outputs, other="eager")
    return [f"captured: {differing}"] if differing else []


def unknown_operator(node: torch.fx.Node) -> str | None:
    """Why the operator of a node is not analysable; None if it is."""
    if node.op == "call_method":
        is_known = hasattr(torch.Tensor, str(node.target))
        return None if is_known else f"{node.target} is not a method of torch.Tensor"
    if node.op == "call_function":
        home = getattr(node.target, "__module__", None) or ""
        is_known = home.split(".")[0] in MODULES or isinstance(node.target, torch._ops.OpOverload)
        return None if is_known else f"{node.target} comes from {home or 'nowhere'}, not from torch"
    if node.op == "call_module":
        return f"calls the module {node.target}; a subgraph takes its parameters as inputs"
    return None


def main() -> None:
    """`python -m passagent.tasks.constraints PATH DEVICE`: a JSON object on stdout for each subgraph.

    Each is a CheckResult and `ok`; a fault of the machine (`fault`) is the last one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent tells of it
    path, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is no answer
    try:
        for result in check_task(path, device):
            print(json.dumps(dataclasses.asdict(result) | {"ok": result.ok}), file=answers, flush=True)
    except MachineFault as error:
        print(json.dumps({"fault": str(error)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
