"""`passagent eval`, `profile` and `plan`: judge a pass, say what limits it, show what it does."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.agent import validator
from passagent.agent.observe import opinion_line
from passagent.agent.validator import Judges, judged
from passagent.cli.groups import ProfileOptions
from passagent.config import Config, load_config
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.service.known import Known
from passagent.evaluator.target import uses_triton
from passagent.models.types import Model
from passagent.options import EvalOptions, config_of, settings_of
from passagent.plan.recorder_process import recording_process
from passagent.store import Store
from passagent.tasks import Task, load_task
from passagent.view.text import number, print_answer

if TYPE_CHECKING:
    from passagent.plan.messages import Recorded, Refusal


def evaluate(task_path: str, options: EvalOptions, as_json: bool) -> None:
    """Judge a pass_dir (default: the task's own), or answer from the store, and print the evaluation.

    Raises PassagentError, also, once it is printed, for a judgement that is not `ok`.
    """
    settings = settings_of(EvalOptions, options)
    if options["strict_passbench"]:
        settings["evaluator.protocol"] = "passbench"
    if options["reward"] is not None:
        if options["fresh"] or options["validator"] is not None:
            raise UsageError("--reward takes neither --fresh nor --validator")
        _reward(task_path, options, settings, as_json)
        return
    from passagent.view.evaluation import evaluation_text

    task = load_task(task_path)
    config = load_config(options["config"], settings)
    candidate = Candidate.from_dir(options["pass_dir"] or task.path / "pass_dir")
    model = validator.open_validator(config)  # a wrong one is an error before anything is measured
    with Store.open(options["runs_dir"]) as store:
        result = asyncio.run(_evaluate(store, task, candidate, config, model, options["fresh"]))
    evaluation = result.evaluation
    data = json.loads(evaluation.model_dump_json())  # it knows how to write nan and inf
    data |= {"measured_at": result.measured_at, "from_store": result.from_store}
    lines = [evaluation_text(evaluation)]
    if evaluation.validator is not None:
        lines.append(opinion_line(evaluation.validator))
    if result.from_store:
        lines.append(f"measured {result.measured_at}, from the store; --fresh measures again")
    print_answer(as_json, data, lambda: "\n".join(lines))
    if evaluation.status != "ok":
        raise PassagentError(f"{evaluation.task}: the pass is judged {evaluation.status}, not ok")


def _reward(task_path: str, options: EvalOptions, settings: dict[str, Any], as_json: bool) -> None:
    """Judge a pass_dir as PassEnv does, write its reward and print it. Raises PassagentError."""
    from passagent.data.rl.reward import write_reward

    place = Path(str(options["reward"]))
    value, outcome = write_reward(task_path, options["pass_dir"], options["config"], settings, place)
    status, score = (None, None) if isinstance(outcome, str) else (outcome.status, outcome.as_score)
    why = outcome if isinstance(outcome, str) else f"{status}, AS {number(score, 4)}"
    data = {"reward": value, "status": status, "as_score": score}
    print_answer(as_json, data, lambda: f"reward {value}: {why}")


def profile(pass_dir: str, task_path: str, options: ProfileOptions, as_json: bool) -> None:
    """Judge a pass directory, or answer from the store, and say what limits it; `deep`: with counters.

    Raises PassagentError, also, once it is printed, for a pass that is not judged `ok`.
    """
    from passagent.evaluator.fleet.opening import LOCAL
    from passagent.experience.profiling.profiler import profile_evaluated

    task, config = load_task(task_path), config_of(ProfileOptions, options)
    if config.evaluator.pool != LOCAL:
        raise UsageError(f"--pool {config.evaluator.pool}: profiles are made on devices of this machine")
    candidate = Candidate.from_dir(pass_dir)
    with Store.open(options["runs_dir"]) as store:
        evaluation = asyncio.run(_evaluate(store, task, candidate, config, None, False)).evaluation
    profiled = profile_evaluated(task, candidate, evaluation, config.evaluator.device, options["deep"])
    print(profiled.as_json() if as_json else profiled.report())
    if evaluation.status != "ok":
        raise PassagentError(f"{evaluation.task}: the pass is judged {evaluation.status}, not ok")


async def _evaluate(
    store: Store, task: Task, candidate: Candidate, config: Config, model: Model | None, fresh: bool
) -> Known:
    from passagent.evaluator.fleet.opening import open_pool

    pool = open_pool(config.evaluator, tell=lambda text: print(f"passagent: {text}", file=sys.stderr))
    try:
        return await judged(Judges(pool.evaluate, model), store, task, candidate, config, fresh)
    finally:
        await pool.close()
        if model is not None:
            await model.close()


def plan(pass_dir: str, task_path: str, device: str | None, ir: str | None, as_json: bool) -> None:
    """Record the candidate in `pass_dir` on a task and print its plans.

    `device`: `cpu` or `cuda`; None: what its kernels are for. Raises PassagentError where the
    candidate is refused, or a pass or a subgraph is left without a match.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: a plan is for cpu or cuda")
    candidate = Candidate.from_dir(pass_dir)
    with recording_process() as process:  # it imports torch while this process does
        from passagent.plan.facts import device_facts
        from passagent.plan.messages import Recorded
        from passagent.plan.record import record, subgraphs_of
        from passagent.plan.show import recording_text
        from passagent.tasks import load_task

        task = load_task(task_path)
        target = device or _device_of(candidate)
        subgraphs = subgraphs_of(task, target)
        answer = record(process, candidate, subgraphs, target, device_facts())
    if as_json:
        print(answer.model_dump_json())
    if not isinstance(answer, Recorded):
        raise PassagentError(_place(answer) + answer.message)
    if not as_json:
        print(recording_text(answer.recording, ir == "ttir"))
    _check_matches(candidate, answer)


def _device_of(candidate: Candidate) -> str:
    named = any("cuda_kernel" in text for text in candidate.files.values())
    return "cuda" if named or uses_triton(candidate) else "cpu"


def _check_matches(candidate: Candidate, answer: Recorded) -> None:
    """Raise PassagentError for passes that match nowhere, and for subgraphs in which none does."""
    recording = answer.recording
    problems = [
        f"{failure.subgraph}: {_place(failure.why)}{failure.why.message}" for failure in answer.failed
    ]
    for failure in recording.passes:
        if not failure.plans and not answer.failed:
            reason = next((m.words for m in answer.missed if m.name == failure.name), "no reason was given")
            place = f"{failure.file}:{_pattern_line(candidate, failure.file)}"
            problems.append(f"{place}: matches nothing: {reason}")
    if not problems:
        bare = [subgraph.name for subgraph in recording.subgraphs if not subgraph.calls]
        problems += [f"no pass matches in {', '.join(bare)}"] if bare else []
    if problems:
        raise PassagentError("; ".join(problems))


def _place(refusal: Refusal) -> str:
    return f"{refusal.file}:{refusal.line}: " if refusal.file else ""


def _pattern_line(candidate: Candidate, file: str) -> int:
    """Where the file defines `pattern`; 1 where it imports it."""
    for node in ast.parse(candidate.files[file]).body:
        if isinstance(node, ast.FunctionDef) and node.name == "pattern":
            return node.lineno
    return 1
