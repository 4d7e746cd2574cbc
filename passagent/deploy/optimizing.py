"""`passagent optimize`: regions, searches for them, a package, and whether it pays on the whole model.

All that is made stays in the state directory: `tasks`, `runs`, `passes`, `report.md`, `report.json`. The same
request again goes on from there. Only the package that pays is written beside it.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from passagent.config import load_config
from passagent.deploy.loading import load_package
from passagent.deploy.model_timing import Measurement, Ratio, measure_model
from passagent.deploy.optimized import DROPPED, FAILED, KEPT, LEFT, NOTHING, Optimized, RegionOutcome
from passagent.deploy.package_writing import check_name, drop, pack, read_sources
from passagent.deploy.region_searches import RegionSearches, Wanted, best_run, finished_run
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.hardware.machine import Machine, measure_machine
from passagent.evaluator.result import Evaluation
from passagent.expert.region import attentions
from passagent.kernels.toolchain import compiler
from passagent.sandbox.environment import device_name
from passagent.search.comparison import confirmed_evaluation
from passagent.search.run_memory import kept_pass
from passagent.search.thread import Stoppable, finished
from passagent.store import Store, confirmations, nodes, seeds
from passagent.store.pass_library import OFF, KeptPass, PassLibrary, library_path, library_text
from passagent.system.cache import write_whole
from passagent.system.faults import os_fault
from passagent.system.resumable import locked
from passagent.tasks import Task, load_task
from passagent.tasks.extract.extracting import device_of
from passagent.tasks.extract.factories import Model
from passagent.tasks.extract.model_capture import capture_model
from passagent.tasks.extract.region_tasks import Regions, extract_regions, model_hash
from passagent.tasks.extract.structural_hash import hash_subgraph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

FOR_THE_END = 0.3
"""Share of the time that packaging and measuring the whole model get."""
ITERS = 4
"""Episodes for a region, without `iters`."""
SETTINGS: dict[str, Any] = {
    "experience.library": OFF,  # the regions are looked up here, by what Inductor was beaten with
    "evaluator.dispatch": "graph", "evaluator.reference": "inductor", "search.iters": ITERS,
    "search.islands": 2,
}  # fmt: skip
"""Settings of each search, unless others are given: without the host's share, beside Inductor."""

Begun = Callable[[Stoppable], object]


class Conducts(Protocol):
    """Runs the searches in an event loop, so that a person can stop them."""

    def __call__(self, work: Callable[[Begun], Coroutine[Any, Any, None]]) -> None:
        """Run `work` to its end; it says by its argument what is to be stopped."""
        ...


@dataclass(frozen=True)
class Request:
    """A request of `passagent optimize`."""

    out: Path
    """The package to write."""
    settings: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None
    state: Path | None = None
    """The directory of what is made; None: `OUT.state`."""
    max_time_s: float | None = None
    """Time limit of this call, s."""
    library: str | Path | None = None
    """A file, or `off`; None: the user's own."""

    @property
    def place(self) -> Path:
        """The state directory."""
        return self.state or self.out.with_name(f"{self.out.name}.state")


def optimize(request: Request, model: Model, conduct: Conducts, say: Callable[[str], object]) -> Optimized:
    """Find passes for a model, keep those that pay, write them as a package and a report.

    `say` is told what happens. A package that does not make the whole model faster is not written:
    `Optimized.why_not`. Raises PassagentError: a model that cannot be captured, a state of another one.
    """
    begun = time.monotonic()
    _check_free(request.out)
    compiler()
    place = library_path(request.library)
    say(library_text(place))
    end = None if request.max_time_s is None else begun + request.max_time_s
    with _state(request.place) as state:
        try:
            with _cut_at(end):
                device, regions = _regions(model, state, say)
        except _TimeIsOver:
            raise PassagentError("the time was over before the model was cut into regions") from None
        config = load_config(request.preset, {**SETTINGS, "evaluator.device": device, **request.settings})
        found = Optimized(model.name, device_name(device), state, _outcomes(regions, device, say))
        with PassLibrary.open(place) if place else nullcontext() as library:
            order = sorted(found.regions, key=lambda one: one.light_us - one.eager_us)
            deadline = None if end is None else end - FOR_THE_END * (end - begun)
            searches = RegionSearches(state / "runs", config, say, deadline)
            wanted = [_wanted(regions.path / one.name, one, library, found.device) for one in order]
            conduct(lambda told: searches.run(wanted, told))
            found.stopped = searches.stop_reason
            if searches.is_interrupted:
                _report(found)
                return found
            kept = [_judged(state, regions.path / one.name, one, searches, library) for one in order]
        pairs = [pair for pair in zip(order, kept, strict=True) if pair[1] is not None]
        # the largest first: a pass for a part of a region would take its operators
        pairs.sort(key=lambda pair: -len(pair[0].operators))
        sources = {one.name: str(run) for one, run in pairs}
        found.left_out += regions.refused
        try:
            with _cut_at(end):
                _measure(request, model, found, sources, say)
        except _TimeIsOver:
            found.stopped = found.why_not = "the time was over before the whole model was timed"
    _report(found)
    return found


class _TimeIsOver(BaseException):
    """The command's time is over. No Exception, as compilers take those of what they call for errors."""


@contextmanager
def _cut_at(end: float | None) -> Iterator[None]:
    """Raise _TimeIsOver inside the block at `end`, by time.monotonic(); Python cuts its main thread only."""
    if end is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def cut(*_: object) -> None:
        raise _TimeIsOver

    before = signal.signal(signal.SIGALRM, cut)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, end - time.monotonic()))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def conduct_in_a_thread(work: Callable[[Begun], Coroutine[Any, Any, None]]) -> None:
    """Run searches on a thread of their own. Ctrl-C stops them cleanly, then KeyboardInterrupt is raised."""
    finished(lambda sessions: work(sessions.append))


def _check_free(out: Path) -> None:
    check_name(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: is there already; name another package, or remove it")


@contextmanager
def _state(place: Path) -> Iterator[Path]:
    """The state directory, for this process alone. Raises UsageError."""
    with locked(place / "runs", "optimize.lock", "--state"):
        yield place


def _regions(model: Model, state: Path, say: Callable[[str], object]) -> tuple[str, Regions]:
    """The model's device and regions, extracted or read. Raises UsageError where they are another model's."""
    say(f"capturing {model.name}")
    captured = capture_model(model, breaks_at_data=True)
    tasks = state / "tasks"
    if tasks.exists():
        regions = Regions.read(tasks)
        if regions.model != model_hash(captured):
            raise UsageError(f"{state}: is of another model, or of other inputs; give another --state")
        say(f"going on in {state}")
    else:
        say("cutting it into regions and timing its operators")
        if device_of(captured) == "cpu":  # where the expert writes products
            regions = extract_regions(model, tasks, products=True)
        else:
            regions = extract_regions(model, tasks, whole=attentions)
    return device_of(captured), regions


def _outcomes(regions: Regions, device: str, say: Callable[[str], object]) -> list[RegionOutcome]:
    """The regions that can be searched, with what there is to gain."""
    machine, outcomes = measure_machine(device), []
    for task in regions.tasks:
        if task.problems:
            outcome = RegionOutcome(task.name, task.operators, task.count, task.seconds * 1e6, 0.0)
            outcome.outcome, outcome.why = FAILED, task.problems[0]
        else:
            light_s = sum(
                _light_s(machine, subgraph, device) * task.instances[subgraph.name]
                for subgraph in load_task(regions.path / task.name).subgraphs
            )
            light_us = min(light_s, task.seconds) * 1e6
            outcome = RegionOutcome(task.name, task.operators, task.count, task.seconds * 1e6, light_us)
        outcomes.append(outcome)
    total = regions.seconds * 1e6
    gain = sum(one.eager_us - one.light_us for one in outcomes)
    say(f"{len(outcomes)} regions; operators take {total:.0f} us, of which {gain:.0f} us could go at most")
    return outcomes


def _light_s(machine: Machine, subgraph: Subgraph, device: str) -> float:
    """Return the least time of a call, s: its inputs and outputs moved once, or its matrix products."""
    inputs = make_inputs(subgraph, device, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = load_module(subgraph, device)(*inputs)
    tensors = [v for v in pytree.tree_leaves((inputs, outputs)) if isinstance(v, torch.Tensor)]
    moved_bytes = sum(one.numel() * one.element_size() for one in tensors)
    return machine.light_s(moved_bytes, counter.get_total_flops(), subgraph.dtype)


def _wanted(path: Path, one: RegionOutcome, library: PassLibrary | None, device: str) -> Wanted:
    """Return the region to search; with the library's pass for the most of its instances."""
    known: dict[str, tuple[int, KeptPass]] = {}
    for subgraph in load_task(path).subgraphs:
        instance = hash_subgraph(subgraph).instance
        kept = library and library.find(instance, device, str(torch.__version__), "inductor")
        if kept:
            known[kept.files] = (known.get(kept.files, (0, kept))[0] + 1, kept)
    best = max(known.values(), key=lambda pair: pair[0], default=None)
    one.from_library = best is not None
    return Wanted(one.name, path, best[1].sources if best else None)


def _judged(
    state: Path, path: Path, one: RegionOutcome, searches: RegionSearches, library: PassLibrary | None
) -> str | None:
    """What a region's search came to; the run to package if its pass is as fast as Inductor's kernels."""
    if one.outcome == FAILED:
        return None
    if one.name in searches.failed:
        one.outcome, one.why = FAILED, searches.failed[one.name]
        return None
    task = load_task(path)
    run = best_run(state / "runs", task)
    if run is None:
        one.why = searches.stop_reason or ""
        return None
    one.run = run.id
    with Store.open(state / "runs", create=False) as store:
        node = confirmations.winner(store, run.id)
        if node is None or node.evaluation_id is None:
            if finished_run(state / "runs", task) is not None:
                one.outcome, one.why = NOTHING, f"run {run.id} found no correct pass"
            return None
        evaluation = confirmed_evaluation(store, node)
        files, author = nodes.get_files(store, node), seeds.author_of(store, run, node)
    _time(one, task, path, evaluation)
    if one.vs_inductor is not None and one.vs_inductor < 1:
        one.outcome, one.why = LEFT, "left to Inductor"
        return None
    origin = f"{state.absolute() / 'runs'} {run.id}"
    for subgraph in task.subgraphs:
        if library is None:
            break
        library.keep(
            replace(
                kept_pass(subgraph, hash_subgraph(subgraph), evaluation, files, origin, author),
                operators=", ".join(one.operators),
                device=device_name(evaluation.device),
            )
        )
    return run.id


def _time(one: RegionOutcome, task: Task, path: Path, evaluation: Evaluation) -> None:
    """Times of a call of the model, by those of each instance and how often it runs."""
    counts = next(t for t in Regions.read(path.parent).tasks if t.name == one.name).instances
    with_pass = inductor = 0.0
    for graph in evaluation.graphs:
        if graph.compiled_ms is None or graph.vs_reference is None:
            return
        us = graph.compiled_ms * 1e3 * counts[graph.name]
        with_pass, inductor = with_pass + us, inductor + us * graph.vs_reference.e2e
    one.pass_us, one.inductor_us = with_pass, inductor
    if len(evaluation.graphs) == 1 and (speedup := evaluation.graphs[0].speedup) is not None:
        one.speedup = Ratio(speedup.e2e, speedup.low or speedup.e2e, speedup.high or speedup.e2e)


def _measure(
    request: Request, model: Model, found: Optimized, sources: dict[str, str], say: Callable[[str], object]
) -> None:
    """Package the passes, time the whole model, drop those that do not pay; write what is left."""
    if not sources:
        found.why_not = _why_nothing(found)
        return
    place = found.state / "passes"
    shutil.rmtree(place, ignore_errors=True)
    say(f"packaging {len(sources)} passes")
    try:
        packed = pack(list(read_sources(list(sources.values()), [], str(found.state / "runs"))), place)
    except PassagentError as error:
        found.why_not = str(error)
        return
    found.left_out += [f"{name}: {why}" for name, why in packed.left_out]
    say("timing the whole model: eager, Inductor, Inductor with passes, and without each of them")
    package = load_package(place)
    measured = _timed(model, found, place)
    if isinstance(measured, str):
        found.why_not = measured
        return
    if measured.losers:
        say(f"without {', '.join(measured.losers)}, which do not pay, once more")
        left = found.state / "fewer" / place.name
        shutil.rmtree(left, ignore_errors=True)
        dropped = measured.losers
        place = drop(package, dropped, left)
        if len(dropped) < len({entry["name"] for entry in package.manifest["passes"]}):
            again = _timed(model, found, place)
            measured = again if isinstance(again, Measurement) else measured
        else:
            found.why_not = "no pass makes the whole model faster"
    modes = list(measured.gains)
    found.measurement = measured
    found.mode = next((mode for mode in modes if measured.gains[mode].low > 1), modes[0])
    _mark(
        found,
        sources,
        package.manifest["passes"],
        {e["name"] for e in load_package(place).manifest["passes"]},
    )
    if found.why_not:
        return
    gain = measured.gains[found.mode]
    if measured.unequal:
        found.why_not = f"outputs are not eager's: {measured.unequal[0]}"
    elif gain.low <= 1:
        found.why_not = (
            f"with the passes the model is {gain.ratio:.3f} times as fast as {measured.baseline(found.mode)} "
            f"({gain.low:.3f} to {gain.high:.3f}), which proves no gain"
        )
    else:
        found.package = drop(load_package(place), [], request.out)


def _timed(model: Model, found: Optimized, place: Path) -> Measurement | str:
    """The measurement, or why there is none."""
    try:
        return measure_model(model, [load_package(place)])
    except PassagentError as error:
        return str(error)


def _mark(found: Optimized, sources: dict[str, str], packed: list[dict[str, Any]], left: set[str]) -> None:
    """Say of each region whether its passes are in the package that was measured last."""
    for one in found.regions:
        names = [e["name"] for e in packed if e["source"]["run"] == sources.get(one.name)]
        one.passes = [name for name in names if name in left]
        if one.passes:
            one.outcome = KEPT
        elif names:
            one.outcome, one.why = DROPPED, "the whole model is faster without it"
        elif one.name in sources:
            one.outcome, one.why = DROPPED, "it cannot be deployed"


def _why_nothing(found: Optimized) -> str:
    """Why there is no pass to package."""
    if found.stopped:
        return f"{found.stopped} before a pass was found that is as fast as Inductor's kernels"
    reasons = dict.fromkeys(f"{one.name}: {one.why or one.outcome}" for one in found.regions)
    return "; ".join(reasons) or "Inductor fuses nothing in it that is a region"


def _report(found: Optimized) -> None:
    try:
        write_whole(found.state / "report.md", found.markdown())
        write_whole(found.state / "report.json", json.dumps(found.data(), indent=1, default=str) + "\n")
    except OSError as error:
        raise os_fault(error, found.state, "--state") from error
