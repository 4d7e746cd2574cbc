"""The checks of `passagent doctor`: did search, models, devices and processes do their part?"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal, NamedTuple

from passagent.config import Config
from passagent.evaluator.hardware.health import orphaned_workers
from passagent.search import finalists
from passagent.search.run_files import devices_of
from passagent.search.setup import stored_config
from passagent.store import Store, nodes, sessions
from passagent.store.runs import Run
from passagent.view.text import counted, percent, printable, table

MAX_FLATTERY = 0.02
"""The finalists' first measurement may be above the second by this share."""
MAX_ERRORS = 0.1
"""Share of requests to models that may fail."""


class Finding(NamedTuple):
    """The result of a check."""

    check: str
    said: str
    figures: dict[str, Any]
    verdict: Literal["ok", "warn", "fail"] = "ok"
    advice: str = ""
    """A remedy; empty where none is needed."""


def examine(store: Store, run: Run) -> list[Finding]:
    """Make all checks of the run."""
    config = stored_config(run)
    return [check(store, run, config) for check in _CHECKS]


def findings_text(run: Run, findings: list[Finding]) -> str:
    """Write a line for each check, and below it what to do."""
    lines = [f"run {run.id}: {run.task}, {run.model}, {run.device}"]
    rows = []
    for finding in findings:
        rows.append([finding.verdict, finding.check, finding.said])
        if finding.advice and finding.verdict != "ok":
            rows.append(["", "", f"-> {finding.advice.replace('RUN', run.id)}"])
    lines += table(["", "", ""], rows, indent="", wrap=[""]).splitlines()[1:]
    return "\n".join(lines)


_ADVICE = {
    "refused": "see which rules in passagent show RUN; a role prompt may tempt the model",
    "mismatch": "patterns do not match: a stronger model, or more steps (agent.max_steps)",
    "wrong_result": "numerics: add the role numerics, or look at passagent show NODE --why of some",
    "infrastructure": "the machine fails evaluations: see run.log",
}


def _candidates(store: Store, run: Run, config: Config) -> Finding:
    """Check what became of the candidates."""
    counts = Counter[str]()
    for statuses in nodes.counts(store, run.id).values():
        counts.update(statuses)
    total, correct = counts.total(), counts["ok"]
    shares = ", ".join(f"{count / total:.0%} {status}" for status, count in counts.most_common() if count)
    text = f"{total} nodes: {shares}" if total else "none yet"
    figures = {status: count for status, count in counts.items() if count}
    if counts["infrastructure"]:
        return Finding("candidates", text, figures, "warn", _ADVICE["infrastructure"])
    if total < 10 or correct / total >= 0.2:
        return Finding("candidates", text, figures)
    worst = max(figures.keys() - {"ok"}, key=lambda status: counts[status], default="")
    advice = _ADVICE.get(worst, "passagent show NODE shows a failed one")
    return Finding("candidates", text, figures, "warn" if correct else "fail", advice)


def _finalists(store: Store, run: Run, config: Config) -> Finding:
    """Check that the second measurement bears out the first."""
    rows = finalists.last_series(store, run.id)
    again, node_ids = finalists.scores(rows), {row.node_id for row in rows}
    failed = sorted({row.node_id for row in rows if row.status != "ok"})
    first = {node_id: nodes.get_node(store, node_id).as_score for node_id in node_ids}
    ratios = [
        math.log(second / before)
        for node_id in node_ids.difference(failed)
        if (second := again.get(node_id)) and (before := first[node_id])
    ]
    mean = sum(ratios) / len(ratios) if ratios else None
    figures = {"measured_again": len(node_ids), "no_longer_right": failed, "mean_change": mean}
    if not node_ids:
        has_correct = any(counts.get("ok") for counts in nodes.counts(store, run.id).values())
        if run.state == "finished" and config.search.finalists and has_correct:
            advice = "the run's winner may be luck: passagent resume RUN"
            return Finding("finalists", "no node was measured again", figures, "fail", advice)
        return Finding("finalists", "no node was measured again yet", figures)
    text = f"{len(node_ids)} measured again, on average {percent(mean)} against the first time"
    if failed:
        text += f"; node {', '.join(map(str, failed))} was not right the second time"
        return Finding("finalists", text, figures, "warn", "passagent show NODE tells what failed")
    if mean is not None and mean < -MAX_FLATTERY:
        advice = "first measurements flatter: raise evaluator.budget_s"
        return Finding("finalists", text, figures, "warn", advice)
    return Finding("finalists", text, figures)


def _models(store: Store, run: Run, config: Config) -> Finding:
    """Check that the models answered."""
    states = {"replies": "done", "broken": "broken", "failed": "failed", "lost": "lost"}
    sums = ", ".join(f"coalesce(sum(state = '{state}'), 0) AS {name}" for name, state in states.items())
    [counts] = store.rows(
        f"SELECT count(*) AS requests, {sums}, coalesce(sum(attempt > 1), 0) AS again FROM calls "
        "WHERE run_id = :run",
        {"run": run.id},
    )
    errors = store.rows(
        "SELECT error, count(*) AS count FROM calls WHERE run_id = :run AND state IN ('broken', 'failed') "
        "GROUP BY error ORDER BY count DESC, error LIMIT 1",
        {"run": run.id},
    )
    bad = counts["broken"] + counts["failed"]
    share = bad / counts["requests"] if counts["requests"] else 0.0
    figures = counts | {"share": share}
    words = (
        "{replies} replies to {requests} requests; {failed} failed, {broken} came broken, {again} were tried"
    )
    text = f"{words} again".format(**counts)
    if not bad:
        return Finding("models", text, figures)
    [worst] = errors
    advice = f"{worst['count']} times: {printable(' '.join(str(worst['error'] or '').split()))[:200]}"
    verdict: Literal["ok", "warn"] = "warn" if share > MAX_ERRORS else "ok"
    return Finding("models", text, figures, verdict if counts["replies"] else "fail", advice)


def _devices(store: Store, run: Run, config: Config) -> Finding:
    """Check that every device that a process last had is fit."""
    devices = devices_of(store.runs_dir / run.id)
    if not devices:
        return Finding("devices", "none was used yet", {"devices": []})
    unfit = [device for device in devices if device["state"].startswith(("quarantined", "waits"))]
    faults, busy = sum(of["faults"] for of in devices), ", ".join(f"{of['busy']:.0%}" for of in devices)
    fit = f"{len(devices) - len(unfit)} of {len(devices)} fit"
    text = f"{fit}, {faults} faults charged to no candidate; busy {busy}"
    advice = "; ".join(f"{device['device']} {device['state']}" for device in unfit)
    return Finding("devices", text, {"devices": devices}, "warn" if unfit else "ok", advice)


def _processes(store: Store, run: Run, config: Config) -> Finding:
    """Check that the run's processes came to their end."""
    [open_work] = store.rows(
        "SELECT (SELECT count(*) FROM calls WHERE run_id = :run AND state = 'lost') AS lost_calls, "
        "(SELECT count(*) FROM episodes WHERE run_id = :run AND state = 'running') AS episodes, "
        "(SELECT count(*) FROM nodes WHERE run_id = :run AND state != 'done') AS nodes",
        {"run": run.id},
    )
    is_driven, begun = sessions.is_driven(store, run.id), sessions.of_run(store, run.id)
    open_ended = 0 if is_driven else sum(session.left_at is None for session in begun)
    died = sum(session.left_because == sessions.DIED for session in begun) + open_ended
    figures = open_work | {"sessions": len(begun), "died": died, "is_driven": is_driven}
    text = f"{counted(len(begun), 'session')}, {died} ended by a dead process; "
    text += f"{counted(open_work['lost_calls'], 'call')} lost"
    if run.state == "failed":
        text += f"; the last one ended with an error: {run.stop_reason}"
        advice = "passagent resume RUN goes on; run.log has it in full"
        return Finding("processes", text, figures, "fail", advice)
    if open_ended:
        return Finding("processes", text, figures, "warn", "passagent resume RUN goes on")
    if open_work["nodes"] and not is_driven and run.state == "finished":
        text += f"; the run ended within episodes: {open_work['nodes']} nodes are not judged"
    return Finding("processes", text, figures)


def _left_behind(store: Store, run: Run, config: Config) -> Finding:
    """Check for evaluators' processes of dead owners: this run's, or another passagent's."""
    orphans = orphaned_workers()
    text = f"{len(orphans)} evaluator processes without an owner on this machine"
    advice = f"end them: kill -9 {' '.join(map(str, orphans))}"
    return Finding("left behind", text, {"orphans": orphans}, "warn" if orphans else "ok", advice)


_CHECKS = (_candidates, _finalists, _models, _devices, _processes, _left_behind)
