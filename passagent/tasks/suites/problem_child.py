"""The process that forks one for each problem (sandbox/forking.py), and what such a one does with it."""

from __future__ import annotations

import importlib
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from passagent.errors import MachineFault
from passagent.sandbox.channel import Channel
from passagent.sandbox.forking import serve
from passagent.tasks.suites.problems import Answer, How, Problem, Reason, Refused

_PRELOADED = (
    "torch._dynamo",
    "torch._inductor.config",
    "torch.fx.experimental.symbolic_shapes",
    "passagent.tasks.extract.extracting",
    "passagent.tasks.suites.loading_problems",
)
_TOLERANCE = 1e-5
"""Between the model's call and what was captured of it; times the dtype's precision over float32's."""


class Request(BaseModel):
    """A problem and how a fork is to run it."""

    problem: Problem
    how: How
    most_bytes: int | None


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    import torch

    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    for module in _PRELOADED:
        importlib.import_module(module)
    serve(channel, _answer)


def _answer(stream: socket.socket, scratch: Path) -> None:
    with stream.makefile("rb") as source:
        request = Request.model_validate_json(source.read())
    try:
        answer = make_tasks(request, scratch)
    except BaseException as error:
        answer = _refusal(error, scratch, request.problem)
    stream.sendall(answer.model_dump_json().encode())


def make_tasks(request: Request, scratch: Path) -> Answer:
    """The tasks of a problem, by one capture of each of its calls. Raises Refused, and what its code does."""
    import torch
    import torch.utils._pytree as pytree

    from passagent.tasks.constraints import find_difference, spread
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.suites.loading_problems import load_problem

    torch.set_num_threads(request.how.threads)
    problem = request.problem
    answer = Answer(is_exact=True)
    first_problem = ""
    for number, loaded in enumerate(load_problem(problem, scratch, request.how.device, request.most_bytes)):
        expected = _called_twice(loaded.model)
        out = scratch / f"written_{number}"
        extracted = extract_model(loaded.model, out, saves_memory=True)
        tolerances = (_TOLERANCE, _TOLERANCE)
        differing, _ = find_difference(pytree.tree_leaves(extracted.result), expected, *tolerances)
        if differing:
            raise Refused("differs", f"the captured graph: {differing}")
        good = [graph for graph in extracted.graphs if not graph.problems]
        first_problem = first_problem or next(iter(extracted.problems), "")
        if len(good) < len(extracted.graphs):
            answer.left_out += 1
            continue
        facts = {
            "origin": problem.origin.model_dump(),
            "cut": loaded.cut,
            "group": problem.name,
            "compute_ops": request.how.compute_ops,
            "returns": type(extracted.result).__name__,
        }
        answer.source = loaded.source
        for graph in good:
            suffix = graph.name.removeprefix(loaded.model.name)
            files = _texts(out / graph.name, facts)
            answer.tasks.setdefault(suffix, {})[loaded.model.name + suffix] = files
            answer.operators += graph.operators
            answer.is_exact &= graph.is_exact
        answer.cut |= loaded.cut
        answer.weak = list(dict.fromkeys([*answer.weak, *spread(expected)]))
    if not answer.tasks:
        what: Reason = "differs" if "differs from that of the model" in first_problem else "not_captured"
        if _lacks_memory(first_problem):
            what = "memory"
        raise Refused(what, first_problem or "it has no call whose inputs fit")
    return answer


def _called_twice(model: Any) -> list[Any]:
    """The outputs of a call. Raises Refused where a second one differs, or there is no tensor."""
    import torch
    import torch.utils._pytree as pytree

    from passagent.tasks.extract.model_capture import copied
    from passagent.tasks.large_tensors import close, equal, set_aside

    with torch.no_grad():
        first = set_aside(pytree.tree_leaves(model.module(*copied(model.args), **model.kwargs)))
        torch.manual_seed(1)
        second = pytree.tree_leaves(model.module(*copied(model.args), **model.kwargs))
    if not any(isinstance(output, torch.Tensor) for output in first):
        raise Refused(
            "no_tensor", f"{model.name}: a call returns {type(first[0] if first else None).__name__}"
        )
    for output, other in zip(first, second, strict=True):
        if isinstance(output, torch.Tensor) and not equal(output, other) and not close(output, other):
            raise Refused("random", f"{model.name}: two calls with the same inputs give different outputs")
    return first


def _texts(path: Path, facts: dict[str, Any]) -> dict[str, str]:
    """The files of a subgraph; its graph_net.json says where it comes from."""
    files = {file.name: file.read_text(encoding="utf-8") for file in sorted(path.iterdir())}
    recorded = json.loads(files["graph_net.json"])
    files["graph_net.json"] = json.dumps(recorded | facts, indent=4) + "\n"
    return files


def _refusal(error: BaseException, scratch: Path, problem: Problem) -> Answer:
    """Why a problem became no task, in a word and a line."""
    from passagent.tasks.extract.factories import place_in

    if isinstance(error, Refused):
        return Answer(reason=error.reason, message=_line(str(error), scratch))
    text = _line(f"{type(error).__name__}: {error}", scratch)
    where = place_in(error, [scratch / name for name in problem.files])
    message = f"{where}: {text}" if where else text
    if isinstance(error, ModuleNotFoundError):
        return Answer(
            reason="missing_package", message=f"{where or problem.name}: needs the package {error.name}"
        )
    if isinstance(error, MemoryError | MachineFault) or _lacks_memory(text):
        return Answer(reason="memory", message=message)
    if re.search(r"not compiled with CUDA|No CUDA GPUs|NVIDIA driver|Torch not compiled", text):
        return Answer(reason="needs_gpu", message=message)
    if type(error).__name__ in ("PassagentError", "TaskError"):
        return Answer(reason="not_captured", message=text.partition(": ")[2])
    return Answer(reason="fails", message=message)


def _lacks_memory(text: str) -> bool:
    """Find the words of torch on the CPU, of its allocator on a GPU, or of a library of NVIDIA."""
    return any(words in text for words in ("can't allocate memory", "out of memory", "_ALLOC_FAILED"))


def _line(text: str, scratch: Path) -> str:
    return " ".join(text.replace(f"{scratch}/", "").split())[:400]


if __name__ == "__main__":
    main()
