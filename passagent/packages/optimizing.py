"""`passagent optimize`: regions, searches for them, a package, and whether it pays on the whole model.

All that is made stays in the state directory, and the same request again goes on from there. Only a package
that pays is written elsewhere.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from passagent.config import load_config
from passagent.errors import PassagentError, UsageError
from passagent.expert.read.fusible_regions import attentions
from passagent.kernels.toolchain import compiler
from passagent.options import OptimizeOptions, settings_of
from passagent.packages.loading import MANIFEST, CompileSettings, load_package, package_of
from passagent.packages.model_timing import Compiled, measure_model, without
from passagent.packages.optimized import (
    DROPPED,
    FAILED,
    KEPT,
    LEFT,
    NOTHING,
    TRIED,
    Optimized,
    RegionOutcome,
)
from passagent.packages.package_writing import check_name, drop, pack, read_sources
from passagent.packages.region_searches import RegionSearches, outcomes_of, runs_of
from passagent.packages.rewriting import explain_model
from passagent.passes import Rewrite, load_directory, shipped
from passagent.sandbox.cache import write_whole
from passagent.sandbox.environment import device_name
from passagent.sandbox.faults import writing
from passagent.search import finalists
from passagent.search.run_memory import kept_pass
from passagent.search.thread import Stoppable, finished
from passagent.store import Store, nodes
from passagent.store.locks import locked
from passagent.store.pass_library import OFF, KeptPass, PassLibrary, library_path, library_text
from passagent.tasks import load_task
from passagent.tasks.extract.extracting import Regions, device_of, extract_regions, model_hash
from passagent.tasks.extract.model_capture import Capture, Model, capture_model
from passagent.tasks.extract.structural_hash import hash_subgraph

LOG = "model.log"
"""The file in the state that takes what the model prints."""
FOR_THE_END = 0.3
"""Share of the time that packaging and measuring the whole model get."""
SETTINGS: dict[str, Any] = {
    "experience.library": OFF,  # the regions are looked up here, by what Inductor was beaten with
    "evaluator.dispatch": "graph", "evaluator.reference": "inductor", "search.iters": 4, "search.islands": 2,
}  # fmt: skip
"""CompileSettings of each search, unless others are given: without the host's share, beside Inductor."""
Say = Callable[[str], object]
log = logging.getLogger("passagent.optimize")


class _Candidates(NamedTuple):
    """The passes that may go into the package."""

    runs: dict[str, str]
    """The run that found a region's pass, by the region's name."""
    rewrites: Sequence[Rewrite]
    compiled: Compiled
    """Functions that are compiled of the model already."""


def optimize(options: OptimizeOptions, model: Model, say: Say, begun: float | None = None) -> Optimized:
    """Find passes for a model, keep those that pay, write them as a package and a report.

    `options` are complete; `say` is given each line on what happens. `begun`: when the time began that is
    limited, by time.monotonic(); now where there is none. What the model prints goes to the state's LOG. A
    package that does not make the whole model faster is not written: `Optimized.why_not`. Ctrl-C stops the
    searches cleanly, then KeyboardInterrupt is raised. Raises PassagentError: a model that cannot be
    captured, a state of another one.
    """
    begun, out = begun or time.monotonic(), Path(options["out"] or f"fast_{model.name}")
    check_name(out)
    state = Path(options["state"] or out.with_name(f"{out.name}.state"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not _is_unfinished(out, state):
        raise UsageError(f"--out {out}: is there already; name another package, or remove it")
    rewrites = [*shipped(), *(load_directory(Path(options["passes_dir"])) if options["passes_dir"] else [])]
    compiler()
    library_file = library_path(options["library"])
    say(library_text(library_file))
    end = None if options["max_time"] is None else begun + options["max_time"]
    deadline = None if end is None else end - FOR_THE_END * (end - begun)
    with locked(state / "runs", "optimize.lock", "--state"), (state / LOG).open("a") as printed:
        try:
            with _cut_at(end):
                captured = _captured(model, state, say, printed)
        except _TimeIsOver:
            raise PassagentError("the time was over before the model was captured") from None
        device = device_of(captured)
        result = Optimized(model.name, device_name(device), state, [], is_frozen=options["freeze"])
        result.stopped, compiled = "the regions are not cut yet", Compiled(model, printed)
        try:
            with _cut_at(end):
                rewrites = _fitting(model, rewrites, result, say, printed)
                first = _Candidates({}, rewrites, compiled)
                if rewrites and not _try_first(out, model, result, first, say):
                    rewrites = []
                _report(result)
                regions = _regions(model, captured, state, say, printed)
                result.regions = outcomes_of(regions, device, say)
        except _TimeIsOver:
            result.stopped = "the time was over before the model was cut into regions"
            if result.package is None:
                raise PassagentError(result.stopped) from None
            _report(result)
            return result
        settings = SETTINGS | {"evaluator.device": device} | settings_of(OptimizeOptions, options)
        searches = RegionSearches(state / "runs", load_config(options["config"], settings), say, deadline)
        order = sorted(result.regions, key=lambda region: region.light_us - region.eager_us)

        def search(sessions: list[Stoppable]) -> Coroutine[Any, Any, None]:
            sessions.append(searches)
            return searches.run(files_by_task)

        with PassLibrary.open(library_file) if library_file else nullcontext() as library:
            files_by_task = {
                regions.path / region.name: _library_files(regions.path, region, library, result.device)
                for region in order
            }
            try:
                finished(search)
            finally:
                result.stopped = searches.stop_reason
                if searches.is_interrupted:
                    _report(result)
            runs = {}
            # the largest first: a pass for a part of a region would take its operators
            for region in sorted(order, key=lambda region: -len(region.operators)):
                if _is_as_fast_as_inductor(regions, region, searches, library):
                    runs[region.name] = str(region.run)
        result.left_out += regions.refused
        try:
            with _cut_at(end):
                candidates = _Candidates(runs, rewrites, compiled)
                if runs:  # so that there is a package if the time is over before each pass is left out once
                    _measure(out, model, result, candidates, say, is_first=True)
                if runs or rewrites:
                    _measure(out, model, result, candidates, say)
                else:
                    result.why_not = _why_nothing(result)
        except _TimeIsOver:
            result.stopped = "the time was over before the whole model was timed"
            result.why_not = "" if result.package else result.stopped
    _report(result)
    return result


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


def _captured(model: Model, state: Path, say: Say, printed: TextIO) -> Capture:
    """Capture the model. Raises UsageError where the state is another model's."""
    say(f"capturing {model.name}")
    with redirect_stdout(printed):
        captured = capture_model(model, breaks_at_data=True)
    if (state / "tasks").exists():
        if Regions.read(state / "tasks").model != model_hash(captured):
            raise UsageError(f"{state}: is of another model, or of other inputs; give another --state")
        say(f"going on in {state}")
    return captured


def _regions(model: Model, captured: Capture, state: Path, say: Say, printed: TextIO) -> Regions:
    """The model's regions, extracted or read."""
    tasks = state / "tasks"
    if tasks.exists():
        return Regions.read(tasks)
    say("cutting it into regions and timing its operators")
    on_cpu = device_of(captured) == "cpu"  # where the expert writes products
    try:
        with redirect_stdout(printed):
            return extract_regions(model, tasks, on_cpu, *(() if on_cpu else (attentions,)))
    except PassagentError as error:  # what library operators gain is not lost for it
        return Regions(tasks, [], 0.0, [str(error)], captured.breaks, model_hash(captured))


def _library_files(
    tasks: Path, region: RegionOutcome, library: PassLibrary | None, device: str
) -> dict[str, str] | None:
    """Return the files of the library's pass for the most of a region's instances, if there is one."""
    if library is None:
        return None
    passes: list[KeptPass] = []
    for subgraph in load_task(tasks / region.name).subgraphs:
        instance = hash_subgraph(subgraph).instance
        library_pass = library.find(instance, device, str(torch.__version__), "inductor")
        passes += [library_pass] if library_pass else []
    counts = Counter(library_pass.files for library_pass in passes)
    region.from_library = bool(passes)
    return max(passes, key=lambda library_pass: counts[library_pass.files]).sources if passes else None


def _is_as_fast_as_inductor(
    regions: Regions, region: RegionOutcome, searches: RegionSearches, library: PassLibrary | None
) -> bool:
    """Note a region's times and outcome; True if its best pass is to be packaged. It goes to the library."""
    if region.outcome == FAILED:
        return False
    if region.name in searches.failed:
        region.outcome, region.why = FAILED, searches.failed[region.name]
        return False
    task = load_task(regions.path / region.name)
    region_runs = runs_of(searches.runs_dir, task)
    if not region_runs:
        region.why = searches.stop_reason or ""
        return False
    run = region_runs[0]
    region.run = run.id
    with Store.open(searches.runs_dir, create=False) as store:
        node = finalists.winner(store, run.id)
        if node is None or node.evaluation_id is None:
            if run.state == "finished":
                region.outcome, region.why = NOTHING, f"run {run.id} found no correct pass"
            return False
        evaluation = finalists.confirmed_evaluation(store, node)
        files, author = nodes.get_files(store, node), nodes.author_of(store, run, node)
    counts = next(each for each in regions.tasks if each.name == region.name).instances
    timed = [
        (graph.compiled_ms * 1e3 * counts[graph.name], graph.vs_reference.e2e)
        for graph in evaluation.graphs
        if graph.compiled_ms is not None and graph.vs_reference is not None
    ]
    if len(timed) == len(evaluation.graphs):
        region.pass_us = sum(us for us, _ in timed)
        region.inductor_us = sum(us * ratio for us, ratio in timed)
    if region.vs_inductor is not None and region.vs_inductor < 1:
        region.outcome, region.why = LEFT, "left to Inductor"
        return False
    origin = f"{searches.runs_dir.absolute()} {run.id}"
    for subgraph in task.subgraphs:
        if library is None:
            break
        library_pass = kept_pass(subgraph, hash_subgraph(subgraph), evaluation, files, origin, author)
        operators, device = ", ".join(region.operators), device_name(evaluation.device)
        library.keep(replace(library_pass, operators=operators, device=device))
    return True


def _is_unfinished(out: Path, state: Path) -> bool:
    """Tell whether the package `out` is what an optimisation in `state` wrote that was stopped."""
    try:
        report = json.loads((state / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    is_ours = report.get("package") == str(out) and (out / MANIFEST).is_file()
    return is_ours and bool(report.get("stopped"))


def _fitting(
    model: Model, rewrites: Sequence[Rewrite], result: Optimized, say: Say, printed: TextIO
) -> list[Rewrite]:
    """Return the rewrites that fit somewhere in the model; those that match and do not fit are noted."""
    with redirect_stdout(printed):
        explained = explain_model(model, [package_of(result.state, rewrites)])
    places = Counter(site.name for site in explained.replaced)
    result.rewrites |= {name: f"fits in {count} places" for name, count in places.items()}
    result.prepared_bytes = explained.prepared_bytes
    refused = {site.name: site.reason for site in explained.refused if site.nodes and not places[site.name]}
    result.rewrites |= {name: f"does not fit: {reason}" for name, reason in refused.items()}
    fitting = ", ".join(f"{name} in {count} places" for name, count in places.items())
    say(f"passes of library operators: {fitting or 'none fits'}")
    return [rewrite for rewrite in rewrites if places[rewrite.name]]


def _try_first(out: Path, model: Model, result: Optimized, candidates: _Candidates, say: Say) -> bool:
    """Package what makes the whole model faster by rewrites alone; False where that fails.

    Whatever torch raises where it compiles them costs these passes alone.
    """
    try:
        _measure(out, model, result, candidates, say, is_first=True)
    except Exception as error:
        log.exception("passes of library operators")
        why = f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        say(f"  {why}")
        result.rewrites |= {rewrite.name: why for rewrite in candidates.rewrites}
        return False
    return True


def _measure(
    out: Path, model: Model, result: Optimized, candidates: _Candidates, say: Say, is_first: bool = False
) -> None:
    """Package the passes, time the whole model, drop those that do not pay; write what is left.

    `is_first`: all of them against the baseline alone, so that there is a package soon. A package that is
    written already is replaced by one that gains more.
    """
    place, (runs, rewrites, known) = result.state / "passes", candidates
    shutil.rmtree(place, ignore_errors=True)
    say(f"packaging {len(runs) + len(rewrites)} passes")
    try:
        sources = list(read_sources(list(runs.values()), [], str(result.state / "runs")))
        packed = pack(sources, place, rewrites)
        package = load_package(place)
        result.left_out += [f"{name}: {why}" for name, why in packed.left_out]
        sides = "" if is_first else ", and without each of them"
        say(f"timing the whole model: eager, Inductor, Inductor with passes{sides}")
        measured = measure_model(model, [package], None, is_first, result.is_frozen, known)
        if losers := measured.losers:
            say(f"without {', '.join(losers)}, which do not pay, once more")
            fewer = without(package, losers)
            if fewer.passes or fewer.rewrites:
                measured = measure_model(model, [fewer], None, False, result.is_frozen, known)
    except PassagentError as error:
        result.why_not = "" if result.package else str(error)
        return
    result.rewrites |= {rewrite.name: DROPPED if rewrite.name in losers else TRIED for rewrite in rewrites}
    for region in result.regions:
        entries = package.manifest["passes"]
        regional = [entry["name"] for entry in entries if entry["source"]["run"] == runs.get(region.name)]
        region.passes = [name for name in regional if name not in losers]
        if region.passes:
            region.outcome = TRIED
        elif region.name in runs:
            why = "the whole model is faster without it" if regional else "it cannot be deployed"
            region.outcome, region.why = DROPPED, why
    gaining = [mode for mode, gain in measured.gains.items() if gain.low > 1]
    mode = min(gaining or measured.gains, key=lambda mode: measured.us[f"{mode} + passes"])
    gain = measured.gains[mode]
    say(f"  {gain} of {measured.baseline(mode)}")
    if result.package is not None and result.gain is not None and result.gain.ratio >= gain.ratio:
        if (mode, without(package, losers).names) == (result.mode, result.kept):
            result.measurement = measured  # of the same passes, with more beside them
        if result.kept != package.names or not (losers and gaining):
            return  # else those that do not pay are in it
    result.measurement, result.mode, result.why_not = measured, mode, ""
    if measured.unequal:
        result.why_not = f"outputs are not eager's: {measured.unequal[0]}"
        say(f"  {result.why_not}")
    elif not gaining or len(losers) == len(package.passes) + len(package.rewrites):
        result.why_not = (
            f"with the passes the model is {gain.ratio:.3f} times as fast as "
            f"{measured.baseline(mode)} ({gain.low:.3f} to {gain.high:.3f}), which proves no gain"
        )
    else:
        shutil.rmtree(out, ignore_errors=True)  # an earlier package of this optimisation, or empty
        result.package = drop(package, losers, out, CompileSettings(mode, result.is_frozen, known.is_static))
        result.kept = without(package, losers).names
        say(f"  wrote {out}")


def _why_nothing(result: Optimized) -> str:
    """Why there is no pass to package."""
    if result.stopped:
        return f"{result.stopped} before a pass was found that is as fast as Inductor's kernels"
    reasons = dict.fromkeys(f"{region.name}: {region.why or region.outcome}" for region in result.regions)
    return "; ".join(reasons) or "Inductor fuses nothing in it that is a region"


def _report(result: Optimized) -> None:
    """Write the report; what is in the package is kept."""
    result.rewrites |= dict.fromkeys(result.rewrites.keys() & {*result.kept}, KEPT)
    for region in result.regions:
        region.outcome = KEPT if {*result.kept} & {*region.passes} else region.outcome
    with writing(result.state, "--state"):
        write_whole(result.state / "report.md", result.markdown())
        write_whole(result.state / "report.json", json.dumps(result.data(), indent=1, default=str) + "\n")
