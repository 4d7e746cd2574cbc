"""Checks of `passagent doctor`: whether models, device and processes did their part."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from passagent.config import Config
from passagent.evaluator.hardware.health import orphaned_workers
from passagent.search.run_files import devices_of
from passagent.store import Store, sessions
from passagent.store.runs import Run
from passagent.view import run_figures
from passagent.view.text import clock, counted, number, printable

Verdict = Literal["ok", "warn", "fail"]

IDLE = 0.1
"""Share of the time searched that a device may be without an evaluation."""
ERRORS = 0.1
"""Share of requests to models that may fail."""


class Finding(NamedTuple):
    """What a check found."""

    check: str
    verdict: Verdict
    said: str
    advice: str
    """What to do; empty where nothing is."""
    figures: dict[str, Any]


def models(store: Store, run: Run, config: Config) -> Finding:
    """Whether the models answered."""
    found = run_figures.requests(store, run.id)
    bad = found.broken + found.failed
    share = bad / found.requests if found.requests else 0.0
    said = (
        f"{found.replies} replies to {found.requests} requests; {found.failed} failed, {found.broken} came "
        f"broken, {found.again} were tried again"
    )
    shown = found._asdict() | {"share": share}
    if not bad:
        return Finding("models", "ok", said, "", shown)
    advice = f"{found.worst_count} times: {printable(' '.join((found.worst_error or '').split()))[:200]}"
    if not found.replies:
        return Finding("models", "fail", said, advice, shown)
    return Finding("models", "warn" if share > ERRORS else "ok", said, advice, shown)


def device(store: Store, run: Run, config: Config) -> Finding:
    """Whether the device was kept busy."""
    found = run_figures.device(store, run)
    available_s = run.elapsed_s * len(found.devices)
    idle = 1 - min(1.0, found.busy_s / available_s) if available_s > 0 else None
    shown = found._asdict() | {"elapsed_s": run.elapsed_s, "idle": idle}
    if idle is None:
        return Finding("device", "ok", "nothing was searched yet", "", shown)
    said = (
        f"no evaluation under way for {idle:.0%} of {clock(run.elapsed_s)} searched "
        f"({found.evaluations} evaluations, {number(found.mean_s, 1)} s each)"
    )
    if any(name.endswith(":all") for name in found.devices):
        return Finding("device", "ok", f"{said}, all devices together", "", shown)
    if idle > IDLE:
        advice = "more islands (search.islands) keep it busy while models think"
        return Finding("device", "warn", said, advice, shown)
    return Finding("device", "ok", said, "", shown)


def devices(store: Store, run: Run, config: Config) -> Finding:
    """Whether every device that a process last had is fit."""
    found = devices_of(store.runs_dir / run.id)
    bad = [one for one in found if one["state"].startswith(("quarantined", "waits"))]
    faults = sum(one["faults"] for one in found)
    said = f"{len(found) - len(bad)} of {len(found)} fit, {faults} faults charged to no candidate"
    busy = ", ".join(f"{one['busy']:.0%}" for one in found)
    said += f"; busy {busy}" if found else ""
    if bad:
        advice = "; ".join(f"{one['device']} {one['state']}" for one in bad)
        return Finding("devices", "warn", said, advice, {"devices": found})
    return Finding("devices", "ok", said if found else "none was used yet", "", {"devices": found})


def processes(store: Store, run: Run, config: Config) -> Finding:
    """Whether the run's processes came to their end."""
    left, is_driven = run_figures.unfinished(store, run.id), sessions.is_driven(store, run.id)
    begun = sessions.of_run(store, run.id)
    open_ended = sum(one.left_at is None for one in begun)
    died = sum(one.left_because == sessions.DIED for one in begun) + (0 if is_driven else open_ended)
    lost = run_figures.requests(store, run.id).lost
    shown = {"sessions": len(begun), "died": died, "is_driven": is_driven, "lost_calls": lost} | left
    said = f"{counted(len(begun), 'session')}, {died} ended by a dead process; {counted(lost, 'call')} lost"
    if run.state == "failed":
        said += f"; the last one ended with an error: {run.stop_reason}"
        return Finding(
            "processes", "fail", said, "passagent resume RUN goes on; run.log has it in full", shown
        )
    if open_ended and not is_driven:
        return Finding("processes", "warn", said, "passagent resume RUN goes on", shown)
    if left["nodes"] and not is_driven and run.state == "finished":
        said += f"; the run ended within episodes: {left['nodes']} nodes are not judged"
    return Finding("processes", "ok", said, "", shown)


def left_behind(store: Store, run: Run, config: Config) -> Finding:
    """Whether evaluators' processes of dead owners are still here: this run's, or another passagent's."""
    orphans = orphaned_workers()
    said, shown = f"{len(orphans)} evaluator processes without an owner on this machine", {"orphans": orphans}
    if orphans:
        pids = " ".join(map(str, orphans))
        return Finding("left behind", "warn", said, f"end them: kill -9 {pids}", shown)
    return Finding("left behind", "ok", said, "", shown)


def files(store: Store, run: Run, config: Config) -> Finding:
    """Whether the candidates' files are all there."""
    missing = run_figures.missing_files(store, run.id)
    if missing:
        said = f"{len(missing)} candidates' files are gone from {store.runs_dir}"
        return Finding("files", "fail", said, "restore the database from a backup", {"missing": missing})
    return Finding("files", "ok", "every candidate's files are there", "", {"missing": []})
