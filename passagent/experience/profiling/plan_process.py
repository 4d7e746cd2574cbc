"""`python -m passagent.experience.profiling.plan_process REQUEST`: replay plans, traced or marked for ncu.

None of the candidate's Python is here, and of its kernels only those for the GPU: C++ ones are refused. The
request: `plans` (artefact.py's files), `task`, `subgraph`, `device` and `mode` (`trace` or `mark`).
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.errors import PassagentError, UsageError
from passagent.experience.profiling.profile_record import KernelProfile

WARMUPS, CALLS = 3, 20


def prepared_call(plans: dict[str, str], task_path: str, name: str, device: str) -> Callable[[], Any]:
    """A call of the rewritten subgraph `name` on inputs of its own. Raises PassagentError."""
    from passagent.evaluator.integrity.blocks import Blocks
    from passagent.evaluator.runner.planned import Planned, Plans
    from passagent.kernels import driver
    from passagent.plan import artefact, record
    from passagent.plan.check import check
    from passagent.plan.compile import Built, compile_plan
    from passagent.tasks import load_task
    from passagent.tasks.graphio import load_graph
    from passagent.tasks.inputs import make_inputs

    recording = artefact.read(plans).recording
    task = load_task(task_path)
    subgraph = next(named for named in task.subgraphs if named.name == name)
    graph = next(named for named in record.subgraphs_of(task, "cuda") if named.name == name)
    built: dict[str, Built] = {}
    for plan in (recording.passes[call.number].plans[call.plan] for call in recording.calls_of(name)):
        check(plan)
        if any(kernel.kind == "cpp" for kernel in plan.kernels.values()):
            raise UsageError(f"{name}: launches a C++ kernel, which is not run outside the sandbox")
        built |= compile_plan(plan, driver.architecture())
    inputs = make_inputs(subgraph, device, seed=11)
    planned = Planned(Plans(recording, built), device, Blocks())
    rewritten = planned.apply(load_graph(graph.nodes), planned.calls(name), is_audited=False)
    arguments = [inputs[position] for position in graph.order]
    return lambda: rewritten(*arguments)


def trace(call: Callable[[], object], calls: int = CALLS) -> tuple[float, float, list[KernelProfile]]:
    """Microseconds of a call, of them in kernels, and the kernels of one call. Needs a GPU.

    The first figure is of many calls in a row without the tracer; copies and fills count as kernels.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    wall_us = (time.perf_counter() - begun) / calls * 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    kernels = [
        KernelProfile(name=name, launches=max(1, round(counts[name] / calls)), duration_us=us / counts[name])
        for name, us in times.most_common()
    ]
    return wall_us, sum(times.values()) / calls, kernels


def mark(call: Callable[[], object]) -> None:
    """Run the call once for ncu, after calls that are not profiled."""
    import torch

    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def main(request_file: str) -> int:
    """Trace the call and print the figures as JSON, or run it marked; exit code 1 and a line if it fails."""
    import torch

    request = json.loads(Path(request_file).read_text())
    try:
        with torch.no_grad():
            torch.cuda.set_device(request["device"])
            call = prepared_call(request["plans"], request["task"], request["subgraph"], request["device"])
            if request["mode"] == "mark":
                mark(call)
                return 0
            wall_us, busy_us, kernels = trace(call)
    except (PassagentError, RuntimeError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0][:300]}", file=sys.stderr)
        return 1
    figures = {"wall_us": wall_us, "busy_us": busy_us, "kernels": [kernel.model_dump() for kernel in kernels]}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
