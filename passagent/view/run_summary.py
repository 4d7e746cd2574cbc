"""A run: what it is, how it is doing and what came of it, as data for `--json` and as text for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from passagent.agent.prompt import short_note
from passagent.evaluator.result import Evaluation
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation, rounds_of, standing
from passagent.search.run_files import devices_of
from passagent.store import Store, episodes, ledger, nodes, runs, sessions
from passagent.store.ledger import Spent
from passagent.store.nodes import Node, author_of
from passagent.store.runs import SEEDS, Run
from passagent.store.sessions import resume_command, runs_dir_flag
from passagent.view.evaluation import GRAPH_FIELDS, graph_table
from passagent.view.text import TableData, by_column, clock, interval, number, table, thousands


def status_data(store: Store, run: Run, counting: bool = True) -> dict[str, Any]:
    """Return the run as it is now, as plain data.

    counting: the nodes of each status, for which a large run takes longer.
    """
    settings, counts = json.loads(run.config), nodes.counts(store, run.id) if counting else {}
    islands, best = runs.islands(store, run.id), finalists.winner(store, run.id)
    is_driven, driver = sessions.is_driven(store, run.id), sessions.driver(store, run.id)
    state = shown_state(store, run)
    # a process notes now and then how long it has searched, and nothing at first
    paced_s = run.elapsed_s if not is_driven or run.elapsed_s >= sessions.SAVE_S else 0.0
    # each command has the whole time: it is known of the first one only
    max_time_s = settings["search"]["max_time_s"] if len(sessions.of_run(store, run.id)) < 2 else None
    episodes = sum(island.episodes for island in islands)
    used: dict[str, tuple[float, float | None]] = {
        "episodes": (episodes, run.limit),
        "evaluations": (run.evaluations, settings["search"]["max_evaluations"]),
        "tokens": (run.tokens, settings["search"]["max_tokens"]),
        "cost_usd": (run.cost, settings["search"]["max_cost"]),
        "seconds": (run.elapsed_s, max_time_s),
    }
    fields = ("island", "role", "episodes", "best_node", "best_as", "nodes", "stagnant")
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": state,
        "reason": run.stop_reason,
        "episodes": episodes,
        "best": best_data(store, best) if best else None,
        "islands": [
            {name: getattr(island, name) for name in fields} | {"statuses": counts.get(island.island, {})}
            for island in islands
        ],
        "seeds": counts.get(SEEDS, {}),
        "wanted": run.wanted,
        "is_driven": is_driven,
        "process": driver._asdict() if driver else None,
        "devices": devices_of(store.runs_dir / run.id) if is_driven else [],
        "under_way": _under_way(store, run.id, state),
        "max_steps": settings["agent"]["max_steps"],
        "budget": {name: {"used": now, "limit": limit} for name, (now, limit) in used.items()},
        "per_hour": {
            name: now * 3600 / paced_s if paced_s > 0 else None
            for name, (now, _) in used.items()
            if name != "seconds"
        },
        "eta_s": _eta_s(used, paced_s) if is_driven else None,
    }


def run_data(store: Store, run: Run) -> dict[str, Any]:
    """Return all of the run as one JSON object."""
    data, since = status_data(store, run), finalists.found_since(store, run.id)
    moved = episodes.list_migrations(store, run.id)
    return data | {
        "task_path": run.task_path,
        "seed": run.seed,
        "iters": run.limit,
        "nodes": sum(sum(of.values()) for of in (data["seeds"], *(i["statuses"] for i in data["islands"]))),
        "evaluations": run.evaluations,
        "tokens": {"input": run.input_tokens, "output": run.output_tokens},
        "spending": spending_data(store, run.id),
        "elapsed_s": round(run.elapsed_s, 3),
        "finalists": finalists_data(store, run),
        "found_since": {"node": since.id, "as_score": since.as_score} if since else None,
        "seeds_from": episodes.seed_origins(store, run.id),
        "migrations": [
            {"node": m.node_id, "from": m.from_island, "to": m.to_island, "reason": m.reason} for m in moved
        ],
        "runs_dir": str(store.runs_dir),
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


def spending_data(store: Store, run_id: str) -> dict[str, Any]:
    """Sum up the model calls as plain data; `cost_usd` is None where a price is not known."""
    groups = {by: ledger.spent(store, run_id, by) for by in ("model", "island", "role")}
    models = groups["model"]
    return {
        "cost_usd": None if any(group.unpriced for group in models) else sum(group.cost for group in models),
        "requests": sum(group.requests for group in models),
        "lost": sum(group.lost for group in models),
        **{f"by_{by}": [asdict(group) for group in spent] for by, spent in groups.items()},
    }


def spending_table(models: list[Spent]) -> TableData:
    """Return a row for each model, none if none was asked; the notes say which costs are not sure."""
    columns = {
        "model": lambda group: group.group,
        ">replies": lambda group: str(group.replies),
        ">again": lambda group: str(group.broken + group.failed),
        ">in": lambda group: thousands(group.input_tokens),
        ">cached": lambda group: thousands(group.cached_tokens),
        ">out": lambda group: thousands(group.output_tokens),
        ">reasoning": lambda group: thousands(group.reasoning_tokens),
        ">s/reply": lambda group: number(group.latency_s, 1),
        ">USD": lambda group: "unknown" if group.unpriced else f"{group.cost:.4f}",
    }
    if not any(group.input_tokens + group.output_tokens + group.broken + group.failed for group in models):
        return TableData([*columns], [])
    notes = []
    if lost := sum(group.lost for group in models):
        notes.append(f"{lost} calls were under way when a process died: what they cost is not known")
    drop = ["reasoning", "cached", "s/reply", "again"]
    return TableData(*by_column(models, columns), drop, notes=notes)


def finalists_data(store: Store, run: Run) -> list[dict[str, Any]]:
    """How the finalists came off side by side, the best first; `behind`: the winner's AS over theirs."""
    measured = rounds_of(store, finalists.last_series(store, run.id))
    return [asdict(finalist) | {"is_behind": finalist.is_behind} for finalist in standing(measured)]


def score_data(node: Node, evaluation: Evaluation | None) -> dict[str, Any]:
    """The node's AS with its 95% interval, by its `confirmed_evaluation`.

    The first AS alone where a round failed, nothing where it has no score under the run's present conditions.
    """
    confirmed = evaluation if node.as_score is not None and evaluation and evaluation.status == "ok" else None
    return {
        "as_score": confirmed.as_score if confirmed else node.as_score,
        "as_low": confirmed.as_low if confirmed else None,
        "as_high": confirmed.as_high if confirmed else None,
        "first_as": node.as_score,
        "measured_again": confirmed is not None and "rounds" in confirmed.protocol,
    }


def finalists_text(finalists: list[dict[str, Any]]) -> str:
    """Say who won, by how much, and whether that is sure; empty without a series."""
    if not finalists:
        return ""
    first, *others = finalists
    lines = [f"measured again side by side: {_with_interval(first)}"]
    for place, other in enumerate(others, start=2):
        ratio = other["behind"]
        verdict = "" if other["is_behind"] else "; the two cannot be told apart"
        lines.append(
            f"  {place}. {_with_interval(other)}; the winner is "
            f"{ratio['value'] - 1:+.1%} ({ratio['low'] - 1:+.1%} to {ratio['high'] - 1:+.1%}) ahead{verdict}"
        )
    return "\n".join(lines)


def found_since_text(store: Store, run_id: str) -> str:
    """A line on a node that may be better than the winner and was measured once; empty without one."""
    node = finalists.found_since(store, run_id)
    if node is None:
        return ""
    return f"found since: node {node.id}, AS {number(node.as_score, 4)} in one measurement"


def _with_interval(finalist: dict[str, Any]) -> str:
    score = finalist["as_score"]
    ends = f"95% {number(score['low'])} to {number(score['high'])}"
    return f"node {finalist['node_id']}, AS {number(score['value'], 4)} ({ends})"


def best_data(store: Store, node: Node) -> dict[str, Any]:
    """The best node as plain data."""
    evaluation = confirmed_evaluation(store, node)
    author = author_of(store, runs.get_run(store, node.run_id), node)
    return {
        "node": node.id,
        "island": node.island,
        "from": f"a seed ({author})" if node.island == SEEDS else f"island {node.island}",
        **{key: value for key, value in score_data(node, evaluation).items() if key != "measured_again"},
        "confirmed": node.id in finalists.scores(finalists.last_series(store, node.run_id)),
        "gmean_speedup": evaluation.gmean_speedup,
        "note": short_note(node.note),
        "graphs": [graph.model_dump(mode="json", include=GRAPH_FIELDS) for graph in evaluation.graphs],
    }


def shown_state(store: Store, run: Run) -> str:
    """The run's state as a person sees it: `interrupted` where a process died over it."""
    return "interrupted" if run.state == "running" and not sessions.is_driven(store, run.id) else run.state


def run_text(store: Store, data: dict[str, Any]) -> str:
    """Sum up all of a run (`run_data`) for people."""
    flag, best = runs_dir_flag(store), data["best"]
    of = "" if data["iters"] is None else f"/{data['iters']}"
    parts = [
        f"run {data['run']} {data['state']}: {data['reason'] or 'not ended'} "
        f"({data['episodes']}{of} episodes, {data['nodes']} nodes, {data['evaluations']} evaluations, "
        f"{thousands(sum(data['tokens'].values()))} tokens, {clock(data['elapsed_s'])})",
        _best_text(data),
    ]
    if best is not None:
        parts += [finalists_text(data["finalists"]), found_since_text(store, data["run"])]
        parts.append(str(graph_table(confirmed_evaluation(store, nodes.get_node(store, best["node"])))))
    parts.append(_island_table(data))
    if data["seeds"]:
        parts.append(f"seeds: {statuses_text(data['seeds'])} ({'; '.join(data['seeds_from'])})")
    parts.append(str(spending_table(ledger.spent(store, data["run"]))))
    parts += [f"migration of node {m['node']} to island {m['to']}: {m['reason']}" for m in data["migrations"]]
    parts.append(f"the tree: passagent show {data['run']}{flag}")
    if best is not None:
        parts.append(f"export:   passagent best {data['run']}{flag} --out pass_dir")
    # what a finished run needs to go on: more episodes; else another one of its limits changed
    more = data["state"] == "finished" and data["iters"] is not None and data["episodes"] >= data["iters"]
    wider = f" --iters {data['iters'] * 2}" if more else ""
    parts.append(f"go on:    {resume_command(store, data['run'])}{wider}")
    return "\n".join(part for part in parts if part)


def status_text(store: Store, data: dict[str, Any]) -> str:
    """Write how a run is doing (`status_data`) for people."""
    name, process = data["run"], data["process"]
    who = f"process {process['pid']} on {process['host']}" if process else "a process begins"
    who = who if data["is_driven"] else "no process works on it"
    reason = f" ({data['reason']})" if data["reason"] else ""
    is_asked = data["is_driven"] and data["wanted"] != "run"
    wanted_text = f", asked to {data['wanted'].replace('_', ' ')}" if is_asked else ""
    head = f"run {name}: {data['task']}, {data['model']}, {data['device']}"
    parts = [f"{head}: {data['state']}{reason}{wanted_text}; {who}", _best_text(data)]
    parts.append(found_since_text(store, name) if data["best"] else "")
    parts.append("used: " + ", ".join(used_text(key, of) for key, of in data["budget"].items()))
    rates = [used_text(key, {"used": of, "limit": None}) for key, of in data["per_hour"].items() if of]
    parts.append(f"per hour: {', '.join(rates)}" if rates else "")
    parts.append("" if data["eta_s"] is None else f"at this pace it ends in {clock(data['eta_s'])}")
    parts.append(_island_table(data))
    devices = data["devices"]
    if len(devices) > 1 or any("/" in device["device"] for device in devices):  # not this machine's one
        names = ("device", "model", "state", "busy", "evaluations", "faults")
        rows = [[f"{of[key]:.0%}" if key == "busy" else str(of[key]) for key in names] for of in devices]
        parts.append(table([*names[:3], *(f">{key}" for key in names[3:])], rows, drop=["model"]))
        versions = {json.dumps(device["versions"]) for device in devices if "versions" in device}
        for of_host in map(json.loads, sorted(versions)):
            named = (f"{key} {version}" for key, version in of_host.items() if key != "evaluator")
            parts.append(f"on each: {', '.join(named)}")
    parts.append("" if data["is_driven"] else f"go on: {resume_command(store, name)}")
    return "\n".join(part for part in parts if part)


def _best_text(data: dict[str, Any]) -> str:
    best = data["best"]
    if best is None:
        return "best pass: none; no candidate was correct on every graph"
    score = interval(best["as_score"], best["as_low"], best["as_high"], 4)
    score = number(best["as_score"], 4) if data.get("finalists") else score  # its interval stands below
    again, note = ", measured again" if best["confirmed"] else "", f": {best['note']}" if best["note"] else ""
    return f"best pass: node {best['node']}, {best['from']}, AS {score}{again}, correct on every graph{note}"


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


def _island_table(data: dict[str, Any]) -> str:
    """A line for each island, with the episodes under way, if there are any."""
    under_way = {episode["island"]: episode for episode in data["under_way"]}
    header = [">island", "role", ">episodes", ">best AS", "nodes"]
    header[4:4] = [">episode", ">step", "doing"] if under_way else []
    rows = []
    for island in data["islands"]:
        row = [str(island["island"]), island["role"], str(island["episodes"]), number(island["best_as"])]
        if episode := under_way.get(island["island"]):
            step = f"{episode['steps'] + 1}/{data['max_steps']}"
            row += [str(episode["episode"]), step, _doing_text(episode)]
        elif under_way:
            row += ["-", "-", "-"]
        rows.append([*row, statuses_text(island["statuses"]) or str(island["nodes"])])
    return table(header, rows, drop=["step", "episode", "role"] if under_way else [], wrap=["doing", "nodes"])


def _doing_text(episode: dict[str, Any]) -> str:
    """`thinking 0:12`, `evaluating node 7 0:03`."""
    doing = str(episode["doing"])
    since = {"thinking": episode["asked_at"], "evaluating": episode["evaluating_since"]}.get(doing)
    what = f" node {episode['evaluating']}" if doing == "evaluating" else ""
    age_s = (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds() if since else 0.0
    return f"{doing}{what}{f' {clock(max(0.0, age_s))}' if since else ''}"


def statuses_text(counts: dict[str, int]) -> str:
    """Write `3 ok, 1 refused`."""
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def run_row(store: Store, run: Run) -> dict[str, Any]:
    """A run in a line: the best that its model made, and what it began with."""
    best = finalists.winner(store, run.id, by_model=True)
    seed = next(iter(nodes.best_of_island(store, run.id, SEEDS, 1)), None)
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": shown_state(store, run),
        "episodes": sum(island.episodes for island in runs.islands(store, run.id)),
        "iters": run.limit,
        "best_as": finalists.score_of(store, best) if best else None,
        "seed": None if seed is None else finalists.score_of(store, seed),
        "seed_from": None if seed is None else author_of(store, run, seed),
        "created_at": run.created_at,
        "elapsed_s": round(run.elapsed_s, 3),
    }
