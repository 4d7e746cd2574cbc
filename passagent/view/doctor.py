"""The checks of `passagent doctor`: did search, models, devices and processes do their part?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from passagent.config import Config
from passagent.evaluator.hardware.health import orphaned_workers
from passagent.search import finalists
from passagent.search.policies import policy_of, why_none
from passagent.search.run_files import devices_of
from passagent.search.setup import stored_config
from passagent.store import Store, bests, evaluations, nodes, runs, sessions
from passagent.store.runs import Run
from passagent.view.text import clock, counted, number, percent, printable, table

MAX_REPEATS = 0.3
"""Share of nodes that may be equal to an earlier one."""
MAX_FLATTERY = 0.02
"""The finalists' first measurement may be above the second by this share."""
MAX_IDLE = 0.1
"""Share of the time searched that a device may be without an evaluation."""
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
    checks = [check for check in _CHECKS if not run.is_served or check not in _OF_SEARCHES]
    return [check(store, run, config) for check in checks]


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


def _islands(store: Store, run: Run, config: Config) -> Finding:
    """Check that every island had its share of the episodes."""
    islands = runs.islands(store, run.id)
    done = [island.episodes for island in islands]
    figures = {"episodes": done, "best_as": [island.best_as for island in islands]}
    if len(done) == 1:
        return Finding("islands", f"one island, {done[0]} episodes", figures)
    text = f"{len(done)} islands, {min(done)} to {max(done)} episodes each"
    if min(done) == 0 and max(done) > 1:
        advice = "an island finished no episode: passagent status RUN --follow says why"
        return Finding("islands", text, figures, "fail", advice)
    if max(done) - min(done) > max(1, 0.25 * max(done)):
        advice = "an island is much slower: look at its model's latency (passagent show RUN)"
        return Finding("islands", text, figures, "warn", advice)
    return Finding("islands", text, figures)


def _migrations(store: Store, run: Run, config: Config) -> Finding:
    """Check that elites moved, and helped; or say why none did."""
    moved = bests.list_migrations(store, run.id)
    rows = store.rows(
        "SELECT gain FROM episodes WHERE run_id = :run AND migration IS NOT NULL AND state = 'done'",
        {"run": run.id},
    )
    helped = sum((row["gain"] or 0) > 0 for row in rows)
    islands = runs.islands(store, run.id)
    best = max((island.best_as for island in islands if island.best_as is not None), default=None)
    stuck = [
        island.island
        for island in islands
        if policy_of(config.search).scope == "islands"
        and island.stagnant > config.search.stagnation + 1
        and best is not None
        and (island.best_as or 0.0) < best
        and not any(migration.to_island == island.island for migration in moved)
    ]
    figures = {"migrations": len(moved), "helped": helped, "stuck_islands": stuck}
    if stuck:
        text = f"{len(moved)}; island {', '.join(map(str, stuck))} stagnates behind the others without one"
        return Finding("migrations", text, figures, "warn", "lower search.stagnation, or look at the policy")
    if not moved:
        return Finding("migrations", why_none(store, run, config.search), figures)
    text = f"{len(moved)}, and {helped} of the {len(rows)} episodes from a migrant gained over it"
    return Finding("migrations", text, figures)


def _hints(store: Store, run: Run, config: Config) -> Finding:
    """Check that hints were shown."""
    [figures] = store.rows(
        "SELECT (SELECT count(*) FROM episodes WHERE run_id = :run AND model IS NOT NULL) AS episodes, "
        "count(DISTINCT episode_id) AS with_hints, count(DISTINCT hint_id) AS hints "
        "FROM hint_uses WHERE run_id = :run AND is_shown",
        {"run": run.id},
    )
    if not config.agent.hints:
        return Finding("hints", "turned off (agent.hints is 0)", figures)
    if figures["episodes"] and not figures["hints"]:
        text = f"none was shown in {figures['episodes']} episodes"
        return Finding("hints", text, figures, "fail", "see whether knowledge/hints.yaml fits the task")
    text = "{hints} different ones in {with_hints} of {episodes} episodes".format(**figures)
    return Finding("hints", text, figures)


def _duplicates(store: Store, run: Run, config: Config) -> Finding:
    """Check that equal candidates were avoided, and that none was evaluated twice under equal conditions."""
    [counts] = store.rows(
        "SELECT count(*) AS nodes, count(*) - count(DISTINCT canonical_key) AS equal, "
        "count(DISTINCT candidate_key) - count(DISTINCT canonical_key) AS rewritten FROM nodes "
        "WHERE run_id = :run",
        {"run": run.id},
    )
    again = _evaluated_again(store, run.id)
    share = counts["equal"] / counts["nodes"] if counts["nodes"] else 0.0
    figures = counts | {"evaluated_again": again, "share": share}
    text = f"{counts['equal']} of {counts['nodes']} nodes are equal to an earlier one ({share:.0%}), "
    if counts["rewritten"]:
        text += f"{counts['rewritten']} of them but for comments and formatting, "
    if not config.search.reuse:
        return Finding("duplicates", f"{text}evaluated anew (search.reuse is off)", figures)
    if again:
        text += f"{again} candidates were evaluated more than once under the same conditions"
        return Finding("duplicates", text, figures, "fail", "evaluations were wasted: report this")
    text += "none was evaluated twice"
    if counts["nodes"] >= 10 and share > MAX_REPEATS:
        advice = "the model repeats itself: raise its temperature, or take another policy or more roles"
        return Finding("duplicates", text, figures, "warn", advice)
    return Finding("duplicates", text, figures)


def _evaluated_again(store: Store, run_id: str) -> int:
    """Count the programs with more than one evaluation under the same conditions; a validator's are apart."""
    rows = store.rows(
        "WITH twice AS (SELECT canonical_key FROM nodes WHERE run_id = :run AND evaluation_id IS NOT NULL "
        "  GROUP BY canonical_key HAVING count(DISTINCT evaluation_id) > 1) "
        "SELECT DISTINCT evaluations.id, nodes.canonical_key, evaluator_version || environment AS conditions "
        "FROM nodes JOIN twice ON twice.canonical_key = nodes.canonical_key "
        "AND substr(nodes.canonical_key, 1, 16) = substr(twice.canonical_key, 1, 16) "
        "JOIN evaluations ON evaluations.id = nodes.evaluation_id "
        "JOIN conditions ON conditions.id = conditions_id "
        "WHERE nodes.run_id = :run AND evaluations.status != 'infrastructure'",
        {"run": run_id},
    )
    times = Counter(
        (row["canonical_key"], row["conditions"])
        for row in rows
        if evaluations.get_evaluation(store, row["id"], samples=False).get("validator") is None
    )
    return sum(count > 1 for count in times.values())


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
    worst = max(figures.keys() - {"ok"}, key=lambda status: counts[status], default="")
    advice = _ADVICE.get(worst, "passagent show NODE shows a failed one")
    if counts["infrastructure"]:
        return Finding("candidates", text, figures, "warn", _ADVICE["infrastructure"])
    if total >= 10 and not correct:
        return Finding("candidates", text, figures, "fail", advice)
    if total >= 10 and correct / total < 0.2:
        return Finding("candidates", text, figures, "warn", advice)
    return Finding("candidates", text, figures)


def _finalists(store: Store, run: Run, config: Config) -> Finding:
    """Check that the second measurement bears out the first."""
    rows = finalists.last_series(store, run.id)
    again = finalists.scores(rows)
    node_ids = {row.node_id for row in rows}
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
        text = "no node was measured again"
        has_correct = any(counts.get("ok") for counts in nodes.counts(store, run.id).values())
        if run.state == "finished" and config.search.finalists and has_correct:
            advice = "the run's winner may be luck: passagent resume RUN"
            return Finding("finalists", text, figures, "fail", advice)
        return Finding("finalists", f"{text} yet", figures)
    text = f"{len(node_ids)} measured again, on average {percent(mean)} against the first time"
    if failed:
        text += f"; node {', '.join(map(str, failed))} was not right the second time"
        return Finding("finalists", text, figures, "warn", "passagent show NODE tells what failed")
    if mean is not None and mean < -MAX_FLATTERY:
        advice = "first measurements flatter: raise evaluator.budget_s or evaluator.trials"
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
    worst = errors[0] if errors else {"error": "", "count": 0}
    figures = counts | {"worst_error": worst["error"], "worst_count": worst["count"], "share": share}
    text = (
        "{replies} replies to {requests} requests; {failed} failed, {broken} came broken, {again} were tried "
        "again"
    ).format(**counts)
    if not bad:
        return Finding("models", text, figures)
    advice = f"{worst['count']} times: {printable(' '.join(str(worst['error'] or '').split()))[:200]}"
    verdict: Literal["ok", "warn"] = "warn" if share > MAX_ERRORS else "ok"
    return Finding("models", text, figures, verdict if counts["replies"] else "fail", advice)


def _device(store: Store, run: Run, config: Config) -> Finding:
    """Check that the device was busy. An evaluation was under way for its `seconds` before it was stored."""
    names = store.rows(
        "SELECT DISTINCT coalesce(json_extract(sessions.config, '$.evaluator.device'), device) AS name "
        "FROM runs LEFT JOIN sessions ON run_id = runs.id WHERE runs.id = :run",
        {"run": run.id},
    )
    devices = sorted({device for row in names for device in row["name"].split(",")})
    rows = store.rows(
        "SELECT created_at, seconds FROM evaluations WHERE created_at >= :begun AND id IN ("
        "  SELECT evaluation_id FROM nodes WHERE run_id = :run "
        "  UNION SELECT evaluation_id FROM confirmations WHERE run_id = :run)",
        {"run": run.id, "begun": run.created_at},
    )
    total_s = sum(row["seconds"] for row in rows)
    busy_s, mean_s = _covered_s(rows) if len(devices) == 1 else total_s, total_s / max(1, len(rows))
    available_s = run.elapsed_s * len(devices)
    idle = 1 - min(1.0, busy_s / available_s) if available_s > 0 else None
    figures = {"devices": devices, "evaluations": len(rows), "busy_s": busy_s, "mean_s": mean_s}
    figures |= {"elapsed_s": run.elapsed_s, "idle": idle}
    if idle is None:
        return Finding("device", "nothing was searched yet", figures)
    text = (
        f"no evaluation under way for {idle:.0%} of {clock(run.elapsed_s)} searched "
        f"({len(rows)} evaluations, {number(mean_s, 1)} s each)"
    )
    if any(name.endswith(":all") for name in devices):
        return Finding("device", f"{text}, all devices together", figures)
    if idle > MAX_IDLE:
        advice = "more islands (search.islands) keep it busy while models think"
        return Finding("device", text, figures, "warn", advice)
    return Finding("device", text, figures)


def _covered_s(rows: list[dict[str, Any]]) -> float:
    """Return the time in which at least one of the evaluations was under way, s."""
    ends = [datetime.fromisoformat(row["created_at"]).timestamp() for row in rows]
    covered, until = 0.0, float("-inf")
    for begin, end in sorted((end - row["seconds"], end) for end, row in zip(ends, rows, strict=True)):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def _devices(store: Store, run: Run, config: Config) -> Finding:
    """Check that every device that a process last had is fit."""
    devices = devices_of(store.runs_dir / run.id)
    if not devices:
        return Finding("devices", "none was used yet", {"devices": []})
    unfit = [device for device in devices if device["state"].startswith(("quarantined", "waits"))]
    faults, busy = (
        sum(device["faults"] for device in devices),
        [f"{device['busy']:.0%}" for device in devices],
    )
    text = f"{len(devices) - len(unfit)} of {len(devices)} fit, {faults} faults charged to no candidate"
    text += f"; busy {', '.join(busy)}"
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


def _files(store: Store, run: Run, config: Config) -> Finding:
    """Check that the candidates' files are all there."""
    rows = store.rows(
        "SELECT DISTINCT candidate_key FROM nodes WHERE run_id = :run "
        "AND NOT EXISTS (SELECT 1 FROM files WHERE key = candidate_key)",
        {"run": run.id},
    )
    figures = {"missing": [row["candidate_key"] for row in rows]}
    if rows:
        text = f"{len(rows)} candidates' files are gone from {store.runs_dir}"
        return Finding("files", text, figures, "fail", "restore the database from a backup")
    return Finding("files", "every candidate's files are there", figures)


Check = Callable[[Store, Run, Config], Finding]
_OF_SEARCHES: tuple[Check, ...] = (_hints, _finalists, _models, _device)
"""Runs of MCP clients do not have these: their models are not asked here, and think as long as they like."""
_CHECKS: tuple[Check, ...] = (
    _islands,
    _migrations,
    _hints,
    _duplicates,
    _candidates,
    _finalists,
    _models,
    _device,
    _devices,
    _processes,
    _left_behind,
    _files,
)
