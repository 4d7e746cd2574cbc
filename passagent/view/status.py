"""How a run is doing now: as plain data for `--json`, and as text for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from passagent.search.run_files import are_worth_a_line, devices_of
from passagent.store import Store, nodes, sessions
from passagent.store.runs import Run
from passagent.store.sessions import resume_command
from passagent.view.run_summary import found_since_text, run_facts, statuses_text
from passagent.view.text import clock, interval, number, table, thousands


def status_data(store: Store, run: Run) -> dict[str, Any]:
    """Return the run as it is now, as plain data."""
    return live_data(store, run, nodes.counts(store, run.id))


def live_data(store: Store, run: Run, counts: dict[int, dict[str, int]] | None = None) -> dict[str, Any]:
    """Return the run as it is now; without `counts` of its nodes it takes no longer for a large run."""
    settings, data = json.loads(run.config), run_facts(store, run, counts)
    is_driven, driver = sessions.is_driven(store, run.id), sessions.driver(store, run.id)
    # a process notes now and then how long it has searched, and nothing at first
    paced_s = run.elapsed_s if not is_driven or run.elapsed_s >= sessions.SAVE_S else 0.0
    # each command has the whole time: it is known of the first one only
    max_time_s = settings["search"]["max_time_s"] if len(sessions.of_run(store, run.id)) < 2 else None
    used = {
        "episodes": (data["episodes"], run.limit),
        "evaluations": (run.evaluations, settings["search"]["max_evaluations"]),
        "tokens": (run.tokens, settings["search"]["max_tokens"]),
        "cost_usd": (run.cost, settings["search"]["max_cost"]),
        "seconds": (run.elapsed_s, max_time_s),
    }
    return data | {
        "wanted": run.wanted,
        "is_driven": is_driven,
        "process": driver._asdict() if driver else None,
        "devices": devices_of(store.runs_dir / run.id) if is_driven else [],
        "under_way": _under_way(store, run.id, data["state"]),
        "max_steps": settings["agent"]["max_steps"],
        "budget": {name: {"used": now, "limit": limit} for name, (now, limit) in used.items()},
        "per_hour": {
            name: now * 3600 / paced_s if paced_s > 0 else None
            for name, (now, _) in used.items()
            if name != "seconds"
        },
        "eta_s": _eta_s(used, paced_s) if is_driven else None,
    }


def _under_way(store: Store, run_id: str, state: str) -> list[dict[str, Any]]:
    """Return the episodes that have not ended, by island; those that a dead process left, too.

    `asked_at`: when the model call under way was sent. `evaluating`: the node that is being evaluated.
    """
    rows = store.rows(
        "SELECT number AS episode, island, model, parent_id AS parent, steps, created_at AS begun_at, "
        "(SELECT count(*) FROM nodes WHERE episode_id = episodes.id) AS nodes, "
        "(SELECT max(started_at) FROM calls WHERE episode_id = episodes.id AND state = 'started') "
        "AS asked_at, "
        "(SELECT max(id) FROM nodes WHERE episode_id = episodes.id AND state != 'done') AS evaluating, "
        "(SELECT max(created_at) FROM nodes WHERE episode_id = episodes.id AND state != 'done') "
        "AS evaluating_since "
        # + : by the index of the few that run
        "FROM episodes WHERE run_id = :run AND state = 'running' ORDER BY +island, +number",
        {"run": run_id},
    )
    for row in rows:
        waits_for = "evaluating" if row["evaluating"] is not None else "waiting"
        row["doing"] = "at rest" if state != "running" else "thinking" if row["asked_at"] else waits_for
    return rows


def _eta_s(used: dict[str, tuple[float, float | None]], elapsed_s: float) -> float | None:
    """Return the time until the first limit is reached, s; None before the first episode's end."""
    if not used["episodes"][0] or elapsed_s <= 0:
        return None
    return min(
        max(0.0, limit - now) * elapsed_s / now
        for now, limit in used.values()
        if limit is not None and now > 0
    )


def status_text(store: Store, data: dict[str, Any]) -> str:
    """Write the data of a run for people."""
    name, process, best = data["run"], data["process"], data["best"]
    who = f"process {process['pid']} on {process['host']}" if process else "a process begins"
    who = who if data["is_driven"] else "no process works on it"
    reason = f" ({data['reason']})" if data["reason"] else ""
    is_asked = data["is_driven"] and data["wanted"] != "run"
    wanted_text = f", asked to {data['wanted'].replace('_', ' ')}" if is_asked else ""
    head = f"run {name}: {data['task']}, {data['model']}, {data['device']}"
    lines = [f"{head}: {data['state']}{reason}{wanted_text}; {who}"]
    if best is None:
        lines.append("best so far: nothing correct yet")
    else:
        score = interval(best["as_score"], best["as_low"], best["as_high"], 4)
        again = ", measured again" if best["confirmed"] else ""
        lines.append(f"best so far: node {best['node']}, {best['from']}, AS {score}{again}")
        if since := found_since_text(store, name):
            lines.append(since)
    lines.append("used: " + ", ".join(used_text(key, of) for key, of in data["budget"].items()))
    rates = [_rate(key, of) for key, of in data["per_hour"].items() if of]
    if rates:
        lines.append(f"per hour: {', '.join(rates)}")
    if data["eta_s"] is not None:
        lines.append(f"at this pace it ends in {clock(data['eta_s'])}")
    lines.append(_island_table(data))
    devices = data["devices"]
    if are_worth_a_line(devices):
        names = ("device", "model", "state", "busy", "evaluations", "faults")
        rows = [[f"{of[key]:.0%}" if key == "busy" else str(of[key]) for key in names] for of in devices]
        header = [*names[:3], *(f">{key}" for key in names[3:])]
        lines.append(table(header, rows, drop=["model"]))
        lines += sorted({_versions_text(device["versions"]) for device in devices if "versions" in device})
    if not data["is_driven"]:
        lines.append(f"go on: {resume_command(store, name)}")
    return "\n".join(lines)


def used_text(name: str, budget: dict[str, Any]) -> str:
    """`3 of 12 episodes`, `1.2k tokens`, `0:32 of 10:00 searched`."""

    def show(value: float) -> str:
        if name == "cost_usd":
            return f"${value:.4f}"
        if name == "seconds":
            return clock(value)
        return thousands(int(value))

    noun = {"cost_usd": "", "seconds": " searched"}.get(name, f" {name}")
    limit = "" if budget["limit"] is None else f" of {show(budget['limit'])}"
    return f"{show(budget['used'])}{limit}{noun}"


def _rate(name: str, value: float) -> str:
    if name == "cost_usd":
        return f"${value:.2f}"
    return f"{thousands(int(value)) if name == 'tokens' else number(value, 1)} {name}"


def _island_table(data: dict[str, Any]) -> str:
    """A line for each island, with the episode under way on it; statuses where they were counted."""
    now = {episode["island"]: episode for episode in data["under_way"]}
    header = [">island", "role", ">episodes", ">best AS", ">episode", ">step", "doing", ">nodes", "statuses"]
    rows = []
    for island in data["islands"]:
        episode = now.get(island["island"])
        rows.append(
            [
                str(island["island"]),
                island["role"],
                str(island["episodes"]),
                number(island["best_as"]),
                str(episode["episode"]) if episode else "-",
                f"{episode['steps'] + 1}/{data['max_steps']}" if episode else "-",
                _doing_text(episode) if episode else "-",
                str(island["nodes"]),
                statuses_text(island.get("statuses", {})) or "-",
            ]
        )
    if not any("statuses" in island for island in data["islands"]):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return table(header, rows, drop=["nodes", "step", "episode", "role"], wrap=["doing", "statuses"])


def _versions_text(versions: dict[str, str]) -> str:
    """`on each: passagent 0.1.0, torch 2.13.0, triton 3.9.0`."""
    versions_text = (f"{name} {version}" for name, version in versions.items() if name != "evaluator")
    return f"on each: {', '.join(versions_text)}"


def _doing_text(episode: dict[str, Any]) -> str:
    """`thinking 0:12`, `evaluating node 7 0:03`."""
    doing = str(episode["doing"])
    since = {"thinking": episode["asked_at"], "evaluating": episode["evaluating_since"]}.get(doing)
    what = f" node {episode['evaluating']}" if doing == "evaluating" else ""
    return f"{doing}{what}{f' {clock(_age_s(since))}' if since else ''}"


def _age_s(at: str) -> float:
    """How long ago it was, s."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())
