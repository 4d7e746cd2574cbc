"""The commands that make models faster: `optimize`, `extract`, `package`, `explain`, `measure` and `best`."""

from __future__ import annotations

import json as json_text
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from passagent.cli.groups import BestOptions
from passagent.cli.parameters import argument, command
from passagent.cli.run_verbs import Run
from passagent.errors import PassagentError, UsageError
from passagent.option_groups import Option
from passagent.options import Json, OptimizeOptions, RunsDir
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import writing
from passagent.view.text import Output, by_column, clock, table

if TYPE_CHECKING:
    from passagent.packages.delivery.deliver import Delivery
    from passagent.store import Store
    from passagent.store.runs import Run as RunRecord
    from passagent.tasks import Task

commands = typer.Typer()

Factory = Annotated[
    str,
    argument(
        "FILE.py:FACTORY",
        "Your own function: it returns `module, example_inputs`, or a module. It runs unsandboxed.",
    ),
]
Inputs = Annotated[
    str | None,
    Option("A function that returns the inputs.", metavar="FILE.py:FUNCTION", shown="the factory's"),
]


@command(commands)
def optimize(factory: Factory, json: Json, **options: Unpack[OptimizeOptions]) -> None:
    """Make your model faster. Searches its regions for passes, and packages those that pay on the whole.

    Ctrl-C stops cleanly; the same command again goes on.
    """
    from passagent.cli.running import Interrupted
    from passagent.packages import optimizing
    from passagent.tasks.extract.model_capture import load_model

    begun, stream = time.monotonic(), sys.stderr if json else sys.stdout

    def say(text: str) -> None:
        print(f"[{clock(time.monotonic() - begun):>5}] {text}", file=stream, flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a batch system sends is as Ctrl-C
    try:
        optimized = optimizing.optimize(options, load_model(factory, options["inputs"]), say, begun)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; what was found is stored, the same command goes on") from error
    report = f"{optimized}\nreport: {optimized.state / 'report.md'}"
    print(json_text.dumps(optimized.data(), default=str) if json else report)
    if not optimized.is_judged:
        raise PassagentError(optimized.headline())


@command(commands)
def extract(
    factory: Factory,
    out: Annotated[str, Option("The directory to write; a new one.", metavar="DIR")],
    inputs: Inputs,
    dynamic: Annotated[bool, Option("Keep sizes of the inputs symbolic.")],
    regions: Annotated[
        bool, Option("Cut the graphs into what Inductor fuses, a task each, by their share of time.")
    ],
) -> Output:
    """Write the graphs of your model as tasks. Each is validated against the model's own outputs."""
    from passagent.tasks.extract.extracting import extract_model
    from passagent.tasks.extract.model_capture import load_model

    if regions:
        if dynamic:
            raise UsageError("--regions takes fixed sizes; leave out --dynamic")
        return _extract_regions(factory, inputs, out)
    extracted = extract_model(load_model(factory, inputs), Path(out), dynamic)
    graphs = [
        {
            "name": graph.name,
            "operators": graph.operators,
            "runs": graph.runs,
            "structure": graph.hash and graph.hash.structure,
            "instance": graph.hash and graph.hash.instance,
            "problems": graph.problems,
            "is_exact": graph.is_exact,
        }
        for graph in extracted.graphs
    ]
    outputs = {True: "the model's, bit for bit", False: "close to the model's"}
    columns = {
        "graph": lambda graph: graph.name,
        ">operators": lambda graph: str(graph.operators),
        ">runs": lambda graph: str(graph.runs),
        "outputs": lambda graph: "not validated" if graph.problems else outputs[graph.is_exact],
    }
    lines = [table(*by_column(extracted.graphs, columns))]
    lines += [*(f"graph break at {place}" for place in extracted.breaks), *extracted.problems]
    data = {"path": out, "ok": extracted.ok, "breaks": extracted.breaks, "graphs": graphs}
    problem = "" if extracted.ok else f"{out}: {extracted.problems[0]}"
    return Output(data, "\n".join([*lines, f"wrote {extracted.path}"]), problem)


def _extract_regions(factory: str, inputs: str | None, out: str) -> Output:
    """Cut a model into tasks below `out`; a wrong one is the answer's problem."""
    from passagent.tasks.extract.extracting import extract_regions
    from passagent.tasks.extract.model_capture import load_model

    regions = extract_regions(load_model(factory, inputs), Path(out))
    problems = [f"{task.name}: {problem}" for task in regions.tasks for problem in task.problems]
    columns = {
        "task": lambda task: task.name,
        ">runs": lambda task: str(task.count),
        ">share": lambda task: f"{task.share:.1%}",
        ">us": lambda task: f"{task.seconds * 1e6:.0f}",
        ">subgraphs": lambda task: str(len(task.instances)),
    }
    lines = [table(*by_column(regions.tasks, columns))]
    lines += [*(f"left out: {refused}" for refused in regions.refused), *problems]
    lines.append(
        f"wrote {len(regions.tasks)} tasks below {out}, of {regions.seconds * 1e6:.0f} us of operators"
    )
    data = {"path": out, "ok": not problems, **regions.data()}
    return Output(data, "\n".join(lines), f"{out}: {problems[0]}" if problems else "")


@command(commands)
def package(
    sources: Annotated[
        list[str], argument("SOURCES...", "Runs (the best pass of each), or directories that best wrote.")
    ],
    out: Annotated[str, Option("The package to write; a new one.", metavar="DIR")],
    task: Annotated[list[str] | None, Option("Of each directory, in order.", metavar="TASK")],
    runs_dir: RunsDir,
) -> Output:
    """Make a Python package of passes for torch.compile."""
    from passagent.packages.package_writing import pack, read_sources

    packed = pack(list(read_sources(sources, task or [], str(runs_dir))), Path(out))
    lines = [f"{name}: torch.ops.passagent.{operator}" for operator, name in packed.operators.items()]
    lines += [f"left out: {name}: {why}" for name, why in packed.left_out]
    lines.append(f'use it: torch.compile(model, backend="passagent", options={{"passes": "{out}"}})')
    data = {"path": out, "operators": packed.operators, "left_out": packed.left_out}
    return Output(data, "\n".join(lines))


@command(commands)
def explain(
    passes: Annotated[
        str,
        argument("PACKAGE", "Its directory or its name; passagent.passes: those that come with passagent."),
    ],
    factory: Factory,
    inputs: Inputs,
) -> Output:
    """Say where passes of a package fit in your model. Which pass does not fit, and why."""
    from passagent.packages.loading import load_packages
    from passagent.packages.rewriting import explain_model
    from passagent.tasks.extract.model_capture import load_model

    explained = explain_model(load_model(factory, inputs), load_packages(passes))
    return Output(explained.data(), str(explained))


@command(commands)
def measure(
    factory: Factory,
    passes: Annotated[
        str | None,
        Option("A package's directory or name.", metavar="PACKAGE", shown="what comes with passagent"),
    ],
    inputs: Inputs,
    mode: Annotated[
        list[str] | None,
        Option(
            "Of Inductor: default, reduce-overhead, max-autotune; or cuda-graph.",
            shown="default, on a GPU cuda-graph too",
        ),
    ],
    out: Annotated[str | None, Option("Write the package without passes that do not pay.", metavar="DIR")],
) -> Output:
    """Time your model with a package of passes. Beside it: eager, and Inductor alone."""
    from passagent.packages.loading import load_packages
    from passagent.packages.model_timing import measure_model
    from passagent.packages.package_writing import drop
    from passagent.tasks.extract.model_capture import load_model

    packages = load_packages(passes or "passagent.passes")
    measured = measure_model(load_model(factory, inputs), packages, mode or None)
    if out is not None:
        drop(packages[0], [*measured.losers, *measured.unused], Path(out))
    problem = f"outputs are not eager's: {measured.unequal[0]}" if measured.unequal else ""
    return Output(measured.data(), str(measured), problem)


@command(commands)
def best(run: Run, **options: Unpack[BestOptions]) -> Output:
    """Write RUN's best pass to a directory for review. With a README and its plan."""
    from passagent.evaluator.candidate import Candidate
    from passagent.search.setup import stored_task
    from passagent.store import Store, runs
    from passagent.view.run_summary import found_since_text

    path, form = Path(options["out"]), options["format"]
    with Store.open(options["runs_dir"], create=False) as store:
        record = runs.find_run(store, run)
        task = stored_task(record)
        if form == "kernelbench":
            from passagent.packages.delivery import kernelbench_module

            path /= kernelbench_module.file_name(task)
        _check_place(path, form in ("review", "pass"), options["force"] or form == "pass")
        delivery = _delivered(store, record, task, options["standalone"] or form not in ("review", "pass"))
        files, recording = delivery.files, delivery.recording
        if form != "review" and recording is None:
            raise UsageError(f"run {record.id}: {delivery.notes[0]} --format {form} is made of plans")
        with writing(path, "--out"):
            if recording is not None and form == "kernelbench":
                write_whole(path, kernelbench_module.kernelbench_module(task, recording, files))
            elif recording is not None and form == "pass":
                from passagent.packages.delivery.pass_files import pass_files

                for name, text in pass_files(delivery, recording, task).items():
                    _check_place(path / name, False, options["force"])
                    write_whole(path / name, text)
            else:
                _clear(path)
                path.mkdir(parents=True, exist_ok=True)
                Candidate(files).write(path)
        since = found_since_text(store, record.id)
    data = {"run": record.id, "node": delivery.node, "path": str(path.absolute())}
    if form != "review":
        return Output(data, f"node {delivery.node} of run {record.id}: {path}")
    from passagent.packages.delivery.deliver import figures

    data |= {"as_score": delivery.evaluation.as_score, "notes": delivery.notes, "files": sorted(files)}
    figure = figures(delivery.evaluation)
    lines = [f"node {delivery.node} ({figure}) of run {record.id}: {path}, see its README.md"]
    lines += [*delivery.notes, *([since] if since else [])]
    places = f"{shlex.quote(record.task_path)} --pass-dir {shlex.quote(str(path))}"
    lines.append(f"evaluate again: passagent eval {places} --device {record.device}")
    return Output(data, "\n".join(lines))


def _check_place(path: Path, is_directory: bool, force: bool) -> None:
    if is_directory and path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: is a file; name a directory")
    if not force and path.exists() and (not is_directory or any(path.iterdir())):
        what = "holds files" if is_directory else "is there"
        raise UsageError(f"--out {path}: {what}; name another directory, or --force to replace them")


def _delivered(store: Store, run: RunRecord, task: Task, stands_alone: bool) -> Delivery:
    """The run's best pass as it is to be written. Raises UsageError where there is none."""
    from passagent.plan.recorder_process import recording_process
    from passagent.search import finalists
    from passagent.search.setup import stored_config
    from passagent.store import nodes
    from passagent.store.nodes import author_of

    node = finalists.winner(store, run.id)
    if node is None or node.evaluation_id is None:
        raise UsageError(f"run {run.id} has no correct pass yet; passagent show {run.id} tells what it tried")
    files = nodes.get_files(store, node)
    author, evaluation = author_of(store, run, node), finalists.confirmed_evaluation(store, node)
    with recording_process() as process:  # it imports torch while this process does
        from passagent.packages.delivery.deliver import Delivery, deliver
        from passagent.packages.delivery.standalone import standalone

        written = standalone(files) if stands_alone else files
        delivery = Delivery(run.id, node.id, author, task.name, evaluation, written)
        deliver(delivery, task, process, stored_config(run).evaluator)
    return delivery


def _clear(path: Path) -> None:
    """Remove the pass that `path` holds: what its manifest names, modules of it, and what lies beside them.

    Raises UsageError where there are files and no manifest.
    """
    from passagent.evaluator.candidate import HELPER, MANIFEST, PLANS

    if not path.exists() or not any(path.iterdir()):
        return
    try:
        names = [Path(f"{name}.py").name for name in json_text.loads((path / MANIFEST).read_text())]
    except (OSError, ValueError, TypeError):
        raise UsageError(f"--out {path}: holds other files than a pass; name another directory") from None
    for name in names:
        text = (path / name).read_text() if (path / name).is_file() else ""
        for module in re.findall(r"^from (\w+) import", text, re.MULTILINE):
            (path / f"{module}.py").unlink(missing_ok=True)
    for name in (*names, MANIFEST, HELPER, "README.md", "plan.txt"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / PLANS, ignore_errors=True)
