"""`passagent doctor`: all checks of a run, and what they found as text."""

from __future__ import annotations

from passagent.search.setup import stored_config
from passagent.store import Store
from passagent.store.runs import Run
from passagent.view import machine_checks, search_checks
from passagent.view.machine_checks import Finding
from passagent.view.text import table

_CHECKS = (
    search_checks.islands,
    search_checks.elite_migrations,
    search_checks.hints,
    search_checks.duplicates,
    search_checks.candidates,
    search_checks.finalists,
    machine_checks.models,
    machine_checks.device,
    machine_checks.devices,
    machine_checks.processes,
    machine_checks.left_behind,
    machine_checks.files,
)


_OF_SEARCHES = (search_checks.hints, search_checks.finalists, machine_checks.models, machine_checks.device)
"""What clients' runs do not have: their models are not asked here, and think as long as they like."""


def examine(store: Store, run: Run) -> list[Finding]:
    """All checks of the run."""
    config = stored_config(run)
    return [check(store, run, config) for check in _CHECKS if not run.is_served or check not in _OF_SEARCHES]


def findings_text(run: Run, found: list[Finding]) -> str:
    """A line for each check, and below it what to do."""
    lines = [f"run {run.id}: {run.task}, {run.model}, {run.device}"]
    rows = []
    for one in found:
        rows.append([one.verdict, one.check, one.said])
        if one.advice and one.verdict != "ok":
            rows.append(["", "", f"-> {one.advice.replace('RUN', run.id)}"])
    lines += table(["", "", ""], rows, indent="", wrap=[""]).splitlines()[1:]
    return "\n".join(lines)
