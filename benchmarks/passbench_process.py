"""One subgraph judged as PassBench does it: in a process started for it. See evaluator_throughput.py.

    python benchmarks/passbench_process.py SUBGRAPH PASS_DIR --device cuda

Import torch and triton, load the candidate, compile through torch.compile with a backend that applies its
passes, compare by allclose, 25 + 100 calls of the candidate, then 25 + 100 of eager, print a line of JSON. No
sandbox, no audit, one set of values. The passes are loaded and applied by passagent's own code; what
importing that takes is reported beside (`import_passagent_s`), for PassBench would not import it.
"""

import time

_started = time.perf_counter()

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

if importlib.util.find_spec("triton"):
    import triton  # noqa: F401
_torch_imported = time.perf_counter()

from passagent.evaluator import score  # noqa: E402
from passagent.evaluator.matching.loaded_passes import LoadedPass, load_passes  # noqa: E402
from passagent.evaluator.matching.rewrite import apply_passes  # noqa: E402
from passagent.evaluator.result import Candidate  # noqa: E402
from passagent.tasks import load_task  # noqa: E402
from passagent.tasks.inputs import make_inputs  # noqa: E402
from passagent.tasks.module import load_module  # noqa: E402

_passagent_imported = time.perf_counter()

WARMUPS, TRIALS = 25, 100
T = -5
"""Tolerance of the comparison."""


def compiled(module: torch.nn.Module, passes: list[LoadedPass], applied: list[str]) -> Callable[..., Any]:
    """The module behind torch.compile, with the passes applied; their names are added to `applied`."""

    def backend(graph_module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        rewritten = apply_passes(graph_module, passes)
        applied.extend(rewritten.applied)
        return rewritten.graph_module.forward

    return torch.compile(module, backend=backend, dynamic=False, fullgraph=True)


def times(call: Callable[..., Any], inputs: list[Any], on_gpu: bool) -> list[int]:
    """TRIALS times of a call, ns, after WARMUPS calls."""
    wait = torch.cuda.synchronize if on_gpu else _nothing
    samples = []
    for _ in range(WARMUPS + TRIALS):
        wait()
        start = time.perf_counter_ns()
        call(*inputs)
        wait()
        samples.append(time.perf_counter_ns() - start)
    return samples[WARMUPS:]


def close(expected: Any, got: Any) -> bool:
    """Every output within the tolerance of its dtype."""
    pairs = zip(torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(got), strict=True)
    return all(_close(a, b) for a, b in pairs)


def _close(expected: Any, got: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return bool(expected == got)
    if not expected.is_floating_point():
        return torch.equal(expected, got)
    atol, rtol = score.tolerance(str(expected.dtype).removeprefix("torch."), T)
    return torch.allclose(got, expected, atol=atol, rtol=rtol, equal_nan=True)


def copies(inputs: list[Any]) -> list[Any]:
    """The inputs as they are now."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def _nothing() -> None:
    pass


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subgraph", type=Path)
    parser.add_argument("pass_dir", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    marks = {"import_torch_s": _torch_imported - _started}
    marks["import_passagent_s"] = _passagent_imported - _torch_imported

    def mark(name: str, since: float) -> float:
        now = time.perf_counter()
        marks[name] = now - since
        return now

    torch.set_grad_enabled(False)
    on_gpu = args.device.startswith("cuda")
    subgraph = load_task(args.subgraph).subgraphs[0]
    module, inputs = load_module(subgraph, args.device), make_inputs(subgraph, args.device, 0)
    with tempfile.TemporaryDirectory() as scratch:
        passes = load_passes(Candidate.from_dir(args.pass_dir), Path(scratch))
        now = mark("load_s", _passagent_imported)
        applied: list[str] = []
        candidate = compiled(module, passes, applied)
        got = candidate(*copies(inputs))
        now = mark("compile_s", now)
        agrees = close(module(*copies(inputs)), got)
        now = mark("compare_s", now)
        samples = [times(call, inputs, on_gpu) for call in (candidate, module)]
        mark("calls_s", now)
    ours, eager = (statistics.median(one) for one in samples)
    report = {"applied": applied, "allclose": agrees, "speedup": eager / ours, "seconds": marks}
    print(json.dumps(report | {"candidate_ns": samples[0], "eager_ns": samples[1]}))


if __name__ == "__main__":
    main()
