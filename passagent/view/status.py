"""How a run is doing now: as plain data for `--json`, and as text for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from passagent.search.run_files import are_worth_a_line, devices_of
from passagent.store import Store, confirmations, nodes, runs, sessions
from passagent.store.runs import Run
from passagent.store.sessions import resume_command
from passagent.view.run_summary import (
    best_data,
    found_since_text,
    shown_state,
)
from passagent.view.text import clock, interval, number, table, thousands


def status_data(store: Store, run: Run) -> dict[str, Any]:
    """The run as it is now."""
    data, counts = live_data(store, run), nodes.counts(store, run.id)
    for island in data["islands"]:
        island["statuses"] = counts.get(island["island"], {})
    return data


def live_data(store: Store, run: Run) -> dict[str, Any]:
    """The same without the nodes' statuses, which takes no longer for a run of many nodes."""
    settings = json.loads(run.config)
    islands = runs.islands(store, run.id)
    episodes = sum(island.episodes for island in islands)
    is_driven, driver = sessions.is_driven(store, run.id), sessions.driver(store, run.id)
    state = shown_state(store, run)
    count, best = len(sessions.of_run(store, run.id)), confirmations.winner(store, run.id)
    # a process notes now and then how long it has searched, and nothing at first
    paced_s = run.elapsed_s if not is_driven or run.elapsed_s >= sessions.SAVE_S else 0.0
    used = {
        "episodes": (episodes, run.limit),
        "evaluations": (run.evaluations, settings["search"]["max_evaluations"]),
        "tokens": (run.tokens, settings["search"]["max_tokens"]),
        "cost_usd": (run.cost, settings["search"]["max_cost"]),
        # each command has the whole time: it is known of the first one only
        "seconds": (run.elapsed_s, settings["search"]["max_time_s"] if count < 2 else None),
    }
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": state,
        "wanted": run.wanted,
        "reason": run.stop_reason,
        "is_driven": is_driven,
        "process": driver._asdict() if driver else None,
        "islands": [
            {
                "island": island.island,
                "role": island.role,
                "episodes": island.episodes,
                "best_node": island.best_node,
                "best_as": island.best_as,
                "stagnant": island.stagnant,
            }
            for island in islands
        ],
        "devices": devices_of(store.runs_dir / run.id) if is_driven else [],
        "under_way": [
            episode._asdict() | {"doing": _doing(episode, state)} for episode in _under_way(store, run.id)
        ],
        "max_steps": settings["agent"]["max_steps"],
        "budget": {name: {"used": now, "limit": limit} for name, (now, limit) in used.items()},
        "per_hour": _rates({name: now for name, (now, _) in used.items()}, paced_s),
        "eta_s": _eta_s(used, paced_s) if is_driven else None,
        "best": best_data(store, best, None) if best else None,
    }


class UnderWay(NamedTuple):
    """An episode that has not ended."""

    episode: int
    island: int
    model: str | None
    parent: int | None
    steps: int
    """Model calls answered."""
    nodes: int
    """Candidates proposed."""
    asked_at: str | None
    """When the model call under way was sent; None: none is."""
    evaluating: int | None
    """The node that is being evaluated, or waits for it."""
    evaluating_since: str | None
    begun_at: str


def _under_way(store: Store, run_id: str) -> list[UnderWay]:
    """The episodes that have not ended, by island; those that a dead process left, too."""
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
    return [UnderWay(**row) for row in rows]


def _doing(episode: UnderWay, state: str) -> str:
    """What an episode waits for, in a word."""
    if state != "running":
        return "at rest"
    if episode.asked_at is not None:
        return "thinking"
    return "evaluating" if episode.evaluating is not None else "waiting"


def _rates(used: dict[str, float], elapsed_s: float) -> dict[str, float | None]:
    """Of each counter, per hour searched."""
    names = [name for name in used if name != "seconds"]
    return {name: used[name] * 3600 / elapsed_s if elapsed_s > 0 else None for name in names}


def _eta_s(used: dict[str, tuple[float, float | None]], elapsed_s: float) -> float | None:
    """Time until the first limit is reached at the pace so far, s; None before the first episode's end."""
    if not used["episodes"][0] or elapsed_s <= 0:
        return None
    return min(
        max(0.0, limit - now) * elapsed_s / now
        for now, limit in used.values()
        if limit is not None and now > 0
    )


def status_text(store: Store, data: dict[str, Any]) -> str:
    """The same for people."""
    name = data["run"]
    process = data["process"]
    who = f"process {process['pid']} on {process['host']}" if process else "a process begins"
    who = who if data["is_driven"] else "no process works on it"
    told = f" ({data['reason']})" if data["reason"] else ""
    asked = ""
    if data["is_driven"] and data["wanted"] != "run":
        asked = f", asked to {data['wanted'].replace('_', ' ')}"
    lines = [
        f"run {name}: {data['task']}, {data['model']}, {data['device']}: {data['state']}{told}{asked}; {who}"
    ]
    best = data["best"]
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
    if are_worth_a_line(data["devices"]):
        lines.append(_device_table(data["devices"]))
        lines += sorted({_versions_text(one["versions"]) for one in data["devices"] if "versions" in one})
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
    """A line for each island, with the episode under way on it."""
    now = {episode["island"]: episode for episode in data["under_way"]}
    header = [">island", "role", ">episodes", ">best AS", ">episode", ">step", "doing", ">nodes", "statuses"]
    rows = []
    for island in data["islands"]:
        episode = now.get(island["island"])
        statuses = island["statuses"]
        rows.append(
            [
                str(island["island"]),
                island["role"],
                str(island["episodes"]),
                number(island["best_as"]),
                str(episode["episode"]) if episode else "-",
                f"{episode['steps'] + 1}/{data['max_steps']}" if episode else "-",
                _doing_text(episode) if episode else "-",
                str(sum(statuses.values())),
                ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "none",
            ]
        )
    return table(header, rows, drop=["nodes", "step", "episode", "role"], wrap=["doing", "statuses"])


def _device_table(devices: list[dict[str, Any]]) -> str:
    """A line for each device."""
    header = ["device", "model", "state", ">busy", ">evaluations", ">faults"]
    rows = [
        [one["device"], one["model"], one["state"], f"{one['busy']:.0%}", *map(str, counts)]
        for one in devices
        if (counts := (one["evaluations"], one["faults"]))
    ]
    return table(header, rows, drop=["model"])


def _versions_text(versions: dict[str, str]) -> str:
    """`on each: passagent 0.1.0, torch 2.13.0, triton 3.9.0`."""
    shown = (f"{name} {version}" for name, version in versions.items() if name != "evaluator")
    return f"on each: {', '.join(shown)}"


def _doing_text(episode: dict[str, Any]) -> str:
    """`thinking 0:12`, `evaluating node 7 0:03`."""
    doing = str(episode["doing"])
    since = {"thinking": episode["asked_at"], "evaluating": episode["evaluating_since"]}.get(doing)
    what = f" node {episode['evaluating']}" if doing == "evaluating" else ""
    return f"{doing}{what}{f' {clock(_age_s(since))}' if since else ''}"


def _age_s(at: str) -> float:
    """How long ago it was, s."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())
