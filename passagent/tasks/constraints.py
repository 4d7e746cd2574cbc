"""`passagent tasks check`: is each subgraph runnable, serialisable, analysable (GraphNet 4.1), or why not.

A kernel that writes constants passes where outputs are constant, or do not depend on the inputs. Such a task
is in order, and may be meant so; robust-kbench's filters on outputs mark it.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import operator
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from passagent.errors import MachineFault, TaskError
from passagent.system.faults import machine_fault
from passagent.tasks.capture import capture
from passagent.tasks.examples import locate
from passagent.tasks.graphio import MODULES
from passagent.tasks.inputs import make_inputs
from passagent.tasks.large_tensors import close, equal, set_aside, slices
from passagent.tasks.meta import meta_source, read_meta
from passagent.tasks.module import load_module, source_name
from passagent.tasks.reader import Subgraph, find_forward, parameters, read_subgraph, subgraph_places
from passagent.tasks.room import check_room

TINY = 0.01
"""robust-kbench's least range, standard deviation, and change from inputs to inputs, of outputs."""
_MOST_INPUTS = 16
"""Limit on the inputs of which each is changed alone."""


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


def dependence(
    call: Callable[[list[Any]], list[Any]],
    inputs: Sequence[Any],
    others: Sequence[Any],
    outputs: Sequence[Any],
) -> list[str]:
    """Name the inputs that no output depends on, by calls with other inputs.

    `call`: the outputs for inputs, which it does not change. `others`: the same inputs with other values.
    """
    places = [place for place, value in enumerate(inputs) if _differs(value, others[place])]
    if not places or not any(map(_counts, outputs)):
        return []
    if not _changed(outputs, call(list(others))):
        return ["outputs hardly depend on the inputs"]
    unread = []
    for place in places[:_MOST_INPUTS]:
        mixed = [others[place] if at == place else value for at, value in enumerate(inputs)]
        if not _differ(outputs, call(mixed)):
            unread.append(f"no output depends on input {place}")
    return unread


def _counts(value: Any) -> bool:
    """Return whether there is something to compare: more than one number."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1


def _differs(value: Any, other: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not equal(value, other)


def _changed(outputs: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = [(a, b) for a, b in zip(outputs, others, strict=True) if _counts(a)]
    return any(
        a.shape != b.shape
        or any(float((c.float() - d.float()).nan_to_num_().abs_().max()) >= TINY for c, d in slices(a, b))
        for a, b in pairs
    )


def _differ(outputs: Sequence[Any], others: Sequence[Any]) -> bool:
    tensors = [(a, b) for a, b in zip(outputs, others, strict=True) if isinstance(a, torch.Tensor)]
    return any(
        a.shape != b.shape or any(not torch.equal(c.nan_to_num(), d.nan_to_num()) for c, d in slices(a, b))
        for a, b in tensors
    )


SEED = 0
_COPIES = 2
"""Copies of the inputs at a time: each run has its own."""


@dataclass
class CheckResult:
    """One subgraph."""

    name: str
    runnable: bool
    """Runs in eager mode, finite, and gives the same result twice."""
    serialisable: bool
    """Metadata and source survive being written and read again."""
    analysable: bool
    """Dynamo captures it as one graph of known operators, which computes what the module computes."""
    problems: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    """Why a result on it is worth little. It may be in order all the same."""

    @property
    def ok(self) -> bool:
        """All three."""
        return self.runnable and self.serialisable and self.analysable


def check_task(path: str | Path, device: str = "cpu") -> list[CheckResult]:
    """Check every subgraph of the task at `path`.

    Raises as load_task does if they cannot be found, MachineFault for a fault of the machine.
    """
    return [check_place(place, name, device) for place, name in subgraph_places(locate(path))]


def check_place(place: Path, name: str, device: str) -> CheckResult:
    """Check the subgraph at `place`. Raises MachineFault."""
    try:
        subgraph = read_subgraph(place, name)
    except TaskError as error:
        return CheckResult(name, runnable=False, serialisable=False, analysable=False, problems=[str(error)])
    return check_subgraph(subgraph, device)


def check_subgraph(subgraph: Subgraph, device: str = "cpu") -> CheckResult:
    """Check one subgraph on `device`."""
    file = subgraph.path / "model.py"
    result = CheckResult(subgraph.name, runnable=False, serialisable=False, analysable=False)
    result.serialisable = not (problems := _serialisable(subgraph))
    result.problems += problems
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
        result.problems.append(f"{file}:{_line(error, file)}: does not run: {_first_line(error)}")
        return result
    problems = [f"{file}: {problem}" for problem in _unequal(outputs, again, "two runs")]
    del again  # its memory is needed
    problems += [f"{file}: {problem}" for problem in _not_finite(outputs)]
    result.runnable = not problems
    if result.runnable:
        others = set_aside(make_inputs(subgraph, device, SEED + 1))
        result.weak = spread(outputs)
        result.weak += dependence(lambda given: _run(module, given, inputs), inputs, others, outputs)
        del others
    problems += (unknown := _analysable(module, inputs, outputs, file))
    result.analysable = not unknown
    result.problems += problems
    return result


def _run(module: torch.nn.Module, values: list[Any], inputs: list[Any]) -> list[Any]:
    """The outputs for copies of the values, each on the device of its input."""
    copies = [
        value.to(like.device, copy=True) if isinstance(value, torch.Tensor) else value
        for value, like in zip(values, inputs, strict=True)
    ]
    with torch.no_grad():
        return pytree.tree_leaves(module(*copies))


def _serialisable(subgraph: Subgraph) -> list[str]:
    """Written and read again, metadata and source must be the same."""
    metas = read_meta(subgraph.path / "weight_meta.py", meta_source(subgraph.inputs))
    problems = []
    for meta in subgraph.inputs:
        back = metas.get(meta.name)
        for key, value in dataclasses.asdict(meta).items():
            # repr: nan equals itself
            if back is None or repr(getattr(back, key)) != repr(value):
                problems.append(
                    f"{subgraph.path}/weight_meta.py: {meta.name}: '{key}' does not survive writing"
                )
    file = subgraph.path / "model.py"
    rewritten = ast.unparse(ast.parse(subgraph.source))
    names = [parameter.arg for parameter in parameters(find_forward(rewritten, file), file)]
    if names != [meta.name for meta in subgraph.inputs] or ast.dump(ast.parse(rewritten)) != ast.dump(
        ast.parse(subgraph.source)
    ):
        problems.append(f"{file}: the source does not survive writing")
    return problems


def _analysable(module: torch.nn.Module, inputs: list[Any], outputs: list[Any], file: Path) -> list[str]:
    try:
        captured = capture(module, inputs)
    except TaskError as error:
        return [f"{file}: {error}"]
    graph_module = captured.graph_module
    problems = []
    for node in graph_module.graph.nodes:
        if reason := unknown_operator(node):
            problems.append(f"{file}: operator {node.name}: {reason}")
    if not problems:
        values = [inputs[i] for i in captured.order]
        got = _run(graph_module, values, values)
        problems = [
            f"{file}: {problem}" for problem in _unequal(outputs, got, "eager and the captured graph")
        ]
    return problems


def unknown_operator(node: torch.fx.Node) -> str | None:
    """Why the operator of a node is not analysable; None if it is."""
    if node.op == "call_method":
        is_known = hasattr(torch.Tensor, str(node.target))
        return None if is_known else f"{node.target} is not a method of torch.Tensor"
    if node.op == "call_function":
        home = getattr(node.target, "__module__", None) or ""
        builtin = node.target in vars(operator).values()
        is_known = builtin or home.split(".")[0] in MODULES or isinstance(node.target, torch._ops.OpOverload)
        return None if is_known else f"{node.target} comes from {home or 'nowhere'}, not from torch"
    if node.op == "call_module":
        return f"calls the module {node.target}; a subgraph takes its parameters as inputs"
    return None


def _unequal(first: list[Any], second: list[Any], who: str) -> list[str]:
    if len(first) != len(second):
        return [f"{who} differ: {len(first)} and {len(second)} outputs"]
    problems = []
    for position, (a, b) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            same = a.shape == b.shape and a.dtype == b.dtype and close(a, b)
        else:
            same = type(a) is type(b) and a == b
        if not same:
            problems.append(f"{who} differ in output {position}")
    return problems


def _not_finite(outputs: list[Any]) -> list[str]:
    """NaN is a problem; an infinity is not, as masks are made of it."""
    tensors = [(i, t) for i, t in enumerate(outputs) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return [f"output {i} has {int(t.isnan().sum())} NaN" for i, t in tensors if bool(t.isnan().any())]


def _line(error: BaseException, file: Path) -> int:
    """The innermost line of the subgraph's `file` in the error's traceback."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame.lineno or 1 for frame in frames if frame.filename == source_name(file.parent)), 1)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def main() -> None:
    """`python -m passagent.tasks.constraints PATH DEVICE`: a JSON object on stdout for each subgraph.

    Each is a CheckResult and `ok`; a fault of the machine (`fault`) is the last one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent tells of it
    path, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is no answer
    for place, name in subgraph_places(Path(path)):
        try:
            result = check_place(place, name, device)
        except MachineFault as error:
            print(json.dumps({"fault": str(error)}), file=answers, flush=True)
            return
        print(json.dumps(dataclasses.asdict(result) | {"ok": result.ok}), file=answers, flush=True)


if __name__ == "__main__":
    main()
