"""Passes as `ModelNew`, judged by KernelBench's own evaluator and by ours: do the verdicts agree?

    python benchmarks/kernelbench_judge.py ~/KernelBench --tasks kernelbench_tasks --device cuda --most 25

`--tasks`: what `passagent tasks import kernelbench` wrote. For each the expert's first pass is judged by our
evaluator, written as `best --format kernelbench` writes it, and judged by KernelBench's eval.py, as it is and
with an error planted in its kernel, which both must refuse. On a GPU its `eval_kernel_against_ref` judges. It
asks for CUDA; on the CPU the functions that it is made of do (load_original_model_and_inputs,
load_custom_model, run_and_check_correctness), with torch.cuda.synchronize doing nothing. The problem's text
is the task's, with the sizes that were cut.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from evaluator_repeatability import keep

import passagent as pa
from passagent.data.bench.measure import first_pass
from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.packages.delivery.kernelbench_module import file_name, kernelbench_module, read_problem
from passagent.packages.delivery.standalone import standalone
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.record import record, subgraphs_of
from passagent.plan.recorder_process import recording_process
from passagent.sandbox.environment import describe
from passagent.tasks import load_task
from passagent.tasks.reader import GRAPH_LIST

TRIALS = 5
QUICK = {"evaluator.budget_s": 1e-6}
"""Verdicts are asked for, not speed."""
NO_VERDICT = ("out_of_memory", "infrastructure", "timeout")
"""What a machine that is busy with other things does to an evaluation."""
STORES = {
    r"(_values\[j\] = )([^;]+);": r"\1(\2) * (\2) + 0.25f;",
    r"(tl\.store\([^,]+, )(.+)(, mask=)": r"\1(\2) * (\2) + 0.25\3",
}
"""What the expert's kernels store, in C++ and Triton, and the same with an error that no norm takes away."""
NOT_JUDGING = ("dotenv", "openai", "litellm", "requests", "tqdm", "datasets", "tomli", "modal")
"""What KernelBench's package imports for its clients; none of it judges, and it need not be installed."""


class Absent(types.ModuleType):
    """Stands for a module that is not installed: its functions do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def kernelbench(path: Path) -> Any:
    """KernelBench's eval module."""
    sys.path.insert(0, str(path / "src"))
    for name in NOT_JUDGING:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            sys.modules[name] = Absent(name)
    return importlib.import_module("kernelbench.eval")


def judged(judge: Any, problem: str, text: str, device: str) -> dict[str, Any]:
    """KernelBench's verdict on a file."""
    backend = "triton" if "import triton" in text else "cuda"
    if device.startswith("cuda"):
        where = torch.device(device if ":" in device else f"{device}:0")
        found = judge.eval_kernel_against_ref(
            problem, text, num_correct_trials=TRIALS, device=where, backend=backend, measure_performance=False
        )
    else:
        context: dict[str, Any] = {}
        model, init, inputs = judge.load_original_model_and_inputs(problem, context)
        judge.set_seed(42)
        arguments = init()
        judge.set_seed(42)
        original = model(*arguments)
        try:
            made = judge.load_custom_model(text, dict[str, Any]())
            judge.set_seed(42)
            own = made(*arguments)
            found = judge.run_and_check_correctness(
                original, own, inputs, {}, TRIALS, device=torch.device("cpu")
            )
        except Exception as error:
            return {"correct": False, "why": f"{type(error).__name__}: {error}"[:300]}
    told = {name: str(value)[:300] for name, value in found.metadata.items() if "traceback" not in name}
    times = {"runtime_us": found.runtime, "eager_us": found.ref_runtime} if found.runtime > 0 else {}
    return {"correct": bool(found.correctness), "why": "" if found.correctness else str(told), **times}


def agrees(row: dict[str, Any]) -> bool:
    """Both take it, or both find its values wrong (ours refuses some: of a lower precision)."""
    theirs = row["theirs"]
    is_wrong = row["ours"] in ("wrong_result", "refused") and "Output mismatch" in theirs["why"]
    return is_wrong or (row["ours"] == "ok" and theirs["correct"])


def with_an_error(files: dict[str, str]) -> dict[str, str] | None:
    """The candidate with what one kernel stores changed; None where that is not found."""
    for name, text in files.items():
        for pattern, into in STORES.items():
            if name.endswith(".py") and re.search(pattern, text):
                return files | {name: re.sub(pattern, into, text)}
    return None


def main() -> None:
    """Judge, print a line for each; keep the rows, or write them for `--merge`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", help="a checkout of KernelBench")
    parser.add_argument("--tasks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no problem after this time")
    parser.add_argument("--modules", help="where the files are kept")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth problem from the Ith on")
    parser.add_argument("--rows", help="a file for the rows, in place of a result")
    parser.add_argument("--merge", nargs="+", help="files of rows: the result of them all")
    asked = parser.parse_args()
    if asked.merge:
        texts = [json.loads(Path(one).read_text()) for one in asked.merge]
        rows = sorted((row for one in texts for row in one["rows"]), key=lambda row: row["problem"])
        return conclude(texts[0]["environment"], rows, asked.device)
    rows = judge_all(asked)
    environment = describe(asked.device, 1)
    if not asked.rows:
        return conclude(environment, rows, asked.device)
    Path(asked.rows).write_text(json.dumps({"environment": environment, "rows": rows}))


def judge_all(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of this process's share."""
    judge = kernelbench(Path(asked.path))
    if asked.device == "cpu":
        torch.cuda.synchronize = lambda *_args, **_kwargs: None
    number, count = map(int, asked.shard.split("/"))
    places = sorted(one.parent for one in Path(asked.tasks).glob(f"*/{GRAPH_LIST}"))[number::count]
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + asked.seconds
    with pa.Evaluator(device=asked.device, settings=QUICK) as evaluator, recording_process() as process:
        for place in places:
            if sum("ours" in row for row in rows) >= asked.most * 2 or time.monotonic() > end:
                break
            rows += both(judge, evaluator, process, place, asked)
    return rows


def conclude(environment: dict[str, Any], rows: list[dict[str, Any]], device: str) -> None:
    """Count and keep."""
    counted = [row for row in rows if "ours" in row and row["ours"] not in NO_VERDICT]
    agree = [row for row in counted if agrees(row)]
    print(f"{len(agree)} of {len(counted)} verdicts agree")
    data = {
        "environment": environment,
        "trials": TRIALS,
        "problems": len({row["problem"] for row in counted}),
        "agree": len(agree),
        "judged": len(counted),
        "rows": rows,
    }
    print(f"wrote {keep('kernelbench-judge', device, None, data)}")


def both(judge: Any, evaluator: Any, process: Any, place: Path, asked: Any) -> list[dict[str, Any]]:
    """A row for the expert's pass, and one for it with an error planted."""
    task = load_task(place)
    found = []
    try:
        problem = read_problem(task)[0]
        right = first_pass(task, asked.device).files
        candidates = {"": right, "planted": with_an_error(right)}
        for kind, files in candidates.items():
            row = {"problem": task.name, "planted": bool(kind)}
            if files is None:
                found.append(row | {"left_out": "no place for an error was found"})
                continue
            text = written(process, task, files, asked.device)
            if asked.modules:
                out = Path(asked.modules) / kind
                out.mkdir(parents=True, exist_ok=True)
                (out / file_name(task)).write_text(text)
            ours = evaluator.evaluate(str(place), files)
            row |= {"ours": ours.status, "theirs": judged(judge, problem, text, asked.device)}
            found.append(row)
            print(row, flush=True)
    except PassagentError as error:
        found.append({"problem": task.name, "left_out": str(error)})
        print(found[-1], flush=True)
    return found


def written(process: Any, task: Any, files: dict[str, str], device: str) -> str:
    """The candidate as `ModelNew`."""
    target = "cuda" if device.startswith("cuda") else "cpu"
    alone = standalone(files)
    answer = record(process, Candidate(alone), subgraphs_of(task, target), target, device_facts(device))
    if not isinstance(answer, Recorded) or answer.failed:
        raise PassagentError(f"{task.name}: is not recorded: {answer}"[:300])
    return kernelbench_module(task, answer.recording, alone)


if __name__ == "__main__":
    main()
