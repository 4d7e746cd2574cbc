"""The commands that judge passes, show what they do, and keep them: `eval`, `plan`, `profile`, `library`."""

from __future__ import annotations

import ast
import json as json_text
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import typer

from passagent.cli.groups import ProfileOptions
from passagent.cli.parameters import argument, command
from passagent.cli.run_verbs import Task
from passagent.errors import PassagentError, UsageError
from passagent.option_groups import Option, options_of
from passagent.options import Device, EvalOptions, EvaluatorOptions, Json, OwnLibrary, config_of, settings_of
from passagent.view.text import Output, by_column, number, table

if TYPE_CHECKING:
    from passagent.evaluator.candidate import Candidate
    from passagent.evaluator.result import Evaluation
    from passagent.plan.messages import Recorded, Refusal
    from passagent.store.pass_library import KeptPass
    from passagent.tasks import Task as TaskRecord
    from passagent.view.handles import Evaluator, Result

commands = typer.Typer()
library_app = typer.Typer(
    help="List, show and verify passes found for earlier models.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(library_app, name="library")

PassDir = Annotated[str, argument("PASS_DIR", "The candidate.")]
SHOWN_DIGITS = 12
"""Digits of a hash that are shown."""


@command(commands, "eval")
def evaluate(task: Task, **options: Unpack[EvalOptions]) -> Output:
    """Judge a pass directory on TASK. Is it correct, and how fast?

    A pass that was measured before on this machine is answered from the store. Exit code 1 if it is not ok.
    """
    from passagent.evaluator.candidate import Candidate
    from passagent.tasks import load_task
    from passagent.view.evaluation import evaluation_text

    if options["reward"] is not None:
        if options["fresh"]:
            raise UsageError("--reward does not take --fresh")
        from passagent.data.rl.reward import write_reward

        settings, place = settings_of(EvalOptions, options), Path(options["reward"])
        value, outcome = write_reward(task, options["pass_dir"], options["config"], settings, place)
        status, score = (None, None) if isinstance(outcome, str) else (outcome.status, outcome.as_score)
        why = outcome if isinstance(outcome, str) else f"{status}, AS {number(score, 4)}"
        data = {"reward": value, "status": status, "as_score": score}
        return Output(data, f"reward {value}: {why}")
    loaded = load_task(task)
    candidate = Candidate.from_dir(options["pass_dir"] or loaded.path / "pass_dir")
    result = _judged(loaded, candidate, options, options["fresh"])
    evaluation = result.evaluation
    data = json_text.loads(evaluation.model_dump_json())  # it knows how to write nan and inf
    data |= {"measured_at": result.measured_at, "from_store": result.from_store}
    lines = [evaluation_text(evaluation)]
    if result.from_store:
        lines.append(f"measured {result.measured_at}, from the store; --fresh measures again")
    return Output(data, "\n".join(lines), _problem(evaluation))


def _problem(evaluation: Evaluation) -> str:
    is_ok = evaluation.status == "ok"
    return "" if is_ok else f"{evaluation.task}: the pass is judged {evaluation.status}, not ok"


@command(commands)
def profile(pass_dir: PassDir, task: Task, **options: Unpack[ProfileOptions]) -> Output:
    """Say what limits a pass on TASK. Speed of light, compilers' figures, a trace; --deep: GPU counters."""
    from passagent.evaluator.candidate import Candidate
    from passagent.evaluator.fleet.opening import LOCAL
    from passagent.experience.profiling.profiler import profile_evaluated
    from passagent.tasks import load_task

    loaded, config = load_task(task), config_of(ProfileOptions, options)
    if config.evaluator.pool != LOCAL:
        raise UsageError(f"--pool {config.evaluator.pool}: profiles are made on devices of this machine")
    candidate = Candidate.from_dir(pass_dir)
    evaluation = _judged(loaded, candidate, options).evaluation
    profiled = profile_evaluated(loaded, candidate, evaluation, config.evaluator.device, options["deep"])
    return Output(profiled.as_json(), profiled.report(), _problem(evaluation))


def _judged(
    task: TaskRecord, candidate: Candidate, options: EvalOptions | ProfileOptions, fresh: bool = False
) -> Result:
    """Judge a candidate on the devices and under the settings that a command's options name."""
    from passagent.view.handles import Evaluator

    chosen: Any = {name: value for name, value in options.items() if name in options_of(EvaluatorOptions)}
    with Evaluator(
        runs_dir=options["runs_dir"],
        notify=lambda text: print(f"passagent: {text}", file=sys.stderr),
        **chosen,
    ) as evaluator:
        return evaluator.evaluate(task, candidate, fresh=fresh)


@command(commands)
def plan(
    pass_dir: PassDir,
    task: Task,
    device: Annotated[
        str | None,
        Option("cpu or cuda; no GPU is needed for either.", shown="cuda for Triton and CUDA C++, else cpu"),
    ],
    ir: Annotated[Literal["ttir"] | None, Option("Also print what each Triton kernel became.")],
) -> Output:
    """Show what a pass does on TASK in each call. Allocations, launches with their arguments, bytes moved."""
    from passagent.evaluator.candidate import Candidate
    from passagent.evaluator.target import uses_triton
    from passagent.plan.recorder_process import recording_process

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: a plan is for cpu or cuda")
    candidate = Candidate.from_dir(pass_dir)
    with recording_process() as process:  # it imports torch while this process does
        from passagent.plan.facts import device_facts
        from passagent.plan.messages import Recorded
        from passagent.plan.record import record, subgraphs_of
        from passagent.plan.show import recording_text
        from passagent.tasks import load_task
        from passagent.tasks.reader import library_rule

        loaded = load_task(task)
        named = any("cuda_kernel" in text for text in candidate.files.values())
        target = device or ("cuda" if named or uses_triton(candidate) else "cpu")
        subgraphs = subgraphs_of(loaded, target)
        rule = library_rule(None, loaded.subgraphs)
        answer = record(process, candidate, subgraphs, target, device_facts(), rule)
    data = answer.model_dump_json()
    if not isinstance(answer, Recorded):
        return Output(data, None, _place(answer) + answer.message)
    return Output(data, recording_text(answer.recording, ir == "ttir"), _unmatched(candidate, answer))


def _unmatched(candidate: Candidate, answer: Recorded) -> str:
    """Name the passes that match nowhere, else the subgraphs in which none does; empty without any."""
    recording = answer.recording
    problems = [
        f"{failure.subgraph}: {_place(failure.why)}{failure.why.message}" for failure in answer.failed
    ]
    for failure in recording.passes:
        if not failure.plans and not answer.failed:
            reason = next(
                (m.words for m in answer.missed if m.pass_name == failure.name), "no reason was given"
            )
            nodes = ast.parse(candidate.files[failure.file]).body
            functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
            # 1 where the file imports it
            line = next((function.lineno for function in functions if function.name == "pattern"), 1)
            place = f"{failure.file}:{line}"
            problems.append(f"{place}: matches nothing: {reason}")
    if not problems:
        bare = [subgraph.name for subgraph in recording.subgraphs if not subgraph.calls]
        problems += [f"no pass matches in {', '.join(bare)}"] if bare else []
    return "; ".join(problems)


def _place(refusal: Refusal) -> str:
    return f"{refusal.file}:{refusal.line}: " if refusal.file else ""


@command(library_app, "list")
def library_list(library: OwnLibrary) -> Output:
    """List the passes that are kept, the fastest first."""
    from passagent.store.pass_library import PassLibrary

    with PassLibrary.open(library, create=False) as stored:
        passes = stored.passes()
    columns = {
        "region": _short,
        "operators": lambda record: record.operators,
        "device": lambda record: record.device,
        "torch": lambda record: record.torch,
        ">speedup": lambda record: f"{record.speedup:.2f}x of {record.reference}",
        "status": lambda of: of.status + (f", verified {of.verified_at[:10]}" if of.verified_at else ""),
    }
    data = {"library": str(stored.path), "passes": [record.data() for record in passes]}
    return Output(data, table(*by_column(passes, columns)))


@command(library_app, "show")
def library_show(
    word: Annotated[str, argument("HASH", "The beginning of a region's hash, as list shows it.")],
    library: OwnLibrary,
) -> Output:
    """Show a pass: where it comes from, how it was measured, its text."""
    from passagent.store.pass_library import PassLibrary

    with PassLibrary.open(library, create=False) as passes:
        record = passes.named(word)
    data = record.data()
    lines = [f"{f'{key}:':<13}{value}" for key, value in data.items() if key != "files" and value is not None]
    lines += [f"\n--- {name}\n{text.rstrip()}" for name, text in record.sources.items()]
    return Output(data, "\n".join(lines))


@command(library_app, "verify")
def library_verify(
    words: Annotated[
        list[str] | None,
        argument("[HASH...]", "Beginnings of regions' hashes; without any, all of this device."),
    ] = None,
    *,
    library: OwnLibrary,
    device: Device,
    json: Json,
) -> None:
    """Evaluate passes again. One that does not hold is used no more; exit code 1."""
    from importlib.metadata import version

    from passagent.evaluator.hardware.devices import find_devices
    from passagent.store.pass_library import PassLibrary
    from passagent.view.handles import Evaluator

    name, torch = find_devices(device or "cpu")[0].model, version("torch")
    results: list[dict[str, str]] = []
    with PassLibrary.open(library, create=False) as stored:
        passes = [stored.named(word) for word in words or ()] or stored.passes()
        for dispatch, reference in sorted({(record.dispatch, record.reference) for record in passes}):
            settings = {"evaluator.dispatch": dispatch, "evaluator.reference": reference}
            with Evaluator(device=device or "cpu", settings=settings) as evaluator:
                for record in passes:
                    if (record.dispatch, record.reference) != (dispatch, reference):
                        continue
                    if (record.device, record.torch.partition("+")[0]) != (name, torch.partition("+")[0]):
                        status, why = "elsewhere", f"of {record.device} with torch {record.torch}"
                    else:
                        status, why = _evaluated(record, evaluator)
                        stored.note(record, status)
                    result = {"instance": record.instance, "operators": record.operators}
                    results.append(result | {"status": status, "why": why})
                    if not json:
                        print(f"{_short(record)} {record.operators}: {status}{f', {why}' if why else ''}")
    if json:
        print(json_text.dumps({"library": str(stored.path), "passes": results}))
    failed = [result for result in results if result["status"] not in ("ok", "elsewhere")]
    if failed:
        raise PassagentError(f"{failed[0]['operators']}: does not hold any more: {failed[0]['why']}")


def _evaluated(record: KeptPass, evaluator: Evaluator) -> tuple[str, str]:
    """Return the status of a pass that is evaluated again, and why it is wrong or how fast it is."""
    with tempfile.TemporaryDirectory() as place:
        result = evaluator.evaluate(record.write_task(Path(place)), record.sources, fresh=True).evaluation
    if result.status != "ok":
        error = next((graph.error for graph in result.graphs if graph.error), result.error)
        return result.status, error or result.status
    speedup = result.gmean_vs_reference
    return "ok", "" if speedup is None else f"{speedup:.2f}x of {record.reference} now"


def _short(record: KeptPass) -> str:
    return record.instance.rpartition(":")[2][:SHOWN_DIGITS]
