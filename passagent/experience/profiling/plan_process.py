"""`python -m passagent.experience.profiling.plan_process REQUEST`: replay plans, traced or marked for ncu.

None of the candidate's Python is here, and of its kernels only those for the GPU: C++ ones are refused. The
request: `plans` (artefact.py's files), `task`, `subgraph`, `device` and `mode` (`trace` or `mark`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.errors import PassagentError, UsageError


def prepared_call(plans: dict[str, str], task_path: str, name: str, device: str) -> Callable[[], Any]:
    """A call of the rewritten subgraph `name` on inputs of its own. Raises PassagentError."""
    from passagent.evaluator.integrity.blocks import Blocks
    from passagent.evaluator.matching.rewrite import apply_passes
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
    subgraph = next(one for one in task.subgraphs if one.name == name)
    graph = next(one for one in record.subgraphs_of(task, "cuda") if one.name == name)
    built: dict[str, Built] = {}
    calls = next(one.calls for one in recording.subgraphs if one.name == name)
    for plan in (recording.passes[call.number].plans[call.plan] for call in calls):
        check(plan)
        if any(kernel.kind == "cpp" for kernel in plan.kernels.values()):
            raise UsageError(f"{name}: launches a C++ kernel, which is not run outside the sandbox")
        built |= compile_plan(plan, driver.architecture())
    inputs = make_inputs(subgraph, device, seed=11)
    planned = Planned(Plans(recording, built), device, Blocks())
    rewritten = apply_passes(
        load_graph(graph.nodes), planned.passes, check=False, replacement=planned.of(name).again(False).next
    )
    given = [inputs[position] for position in graph.order]
    return lambda: rewritten.graph_module(*given)


def main(request_file: str) -> int:
    """Trace the call and print the figures as JSON, or run it marked; exit code 1 and a line if it fails."""
    import torch

    from passagent.experience.profiling import tracing

    request = json.loads(Path(request_file).read_text())
    try:
        with torch.no_grad():
            torch.cuda.set_device(request["device"])
            call = prepared_call(request["plans"], request["task"], request["subgraph"], request["device"])
            if request["mode"] == "mark":
                tracing.mark(call)
                return 0
            wall_us, busy_us, kernels = tracing.trace(call)
    except (PassagentError, RuntimeError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0][:300]}", file=sys.stderr)
        return 1
    found = {"wall_us": wall_us, "busy_us": busy_us, "kernels": [one.model_dump() for one in kernels]}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
