"""The summary of a run: as plain data for `--json`, and as text for people."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from passagent.agent.prompt import short_note
from passagent.config import Config
from passagent.evaluator.result import Evaluation
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation, rounds_of, standing
from passagent.search.policies import why_none
from passagent.store import Store, bests, ledger, nodes, runs, sessions
from passagent.store.ledger import Spent
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run
from passagent.store.seeds import author_of, seed_origins
from passagent.store.sessions import resume_command, runs_dir_flag
from passagent.view.evaluation import graph_table
from passagent.view.text import TableData, clock, number, table, thousands

_GRAPH_FIELDS = {
    "name",
    "dtype",
    "status",
    "speedup",
    "eager_ms",
    "compiled_ms",
    "pace_ms",
    "max_abs_diff",
    "matches",
}


def run_facts(
    store: Store, run: Run, counts: dict[int, dict[str, int]] | None, exported: Path | None = None
) -> dict[str, Any]:
    """Return what `show` and `status` say of a run, as plain data.

    counts: of its nodes by island and status, None to leave them out; exported: see run_data.
    """
    islands, best = runs.islands(store, run.id), finalists.winner(store, run.id)
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": shown_state(store, run),
        "reason": run.stop_reason,
        "episodes": sum(island.episodes for island in islands),
        "best": best_data(store, best, exported) if best else None,
        "islands": [
            {
                "island": island.island,
                "role": island.role,
                "episodes": island.episodes,
                "best_node": island.best_node,
                "best_as": island.best_as,
                "nodes": island.nodes,
                "stagnant": island.stagnant,
            }
            | ({} if counts is None else {"statuses": counts.get(island.island, {})})
            for island in islands
        ],
    }


def run_data(store: Store, run: Run, config: Config, exported: Path | None = None) -> dict[str, Any]:
    """Return the run as one JSON object; `exported`: where the best pass was written."""
    since, counts = finalists.found_since(store, run.id), nodes.counts(store, run.id)
    moved = bests.list_migrations(store, run.id)
    return run_facts(store, run, counts, exported) | {
        "task_path": run.task_path,
        "seed": run.seed,
        "iters": run.limit,
        "nodes": sum(sum(of_status.values()) for of_status in counts.values()),
        "evaluations": run.evaluations,
        "tokens": {"input": run.input_tokens, "output": run.output_tokens},
        "spending": spending_data(store, run.id),
        "elapsed_s": round(run.elapsed_s, 3),
        "finalists": finalists_data(store, run),
        "found_since": {"node": since.id, "as_score": since.as_score} if since else None,
        "seeds": counts.get(SEEDS, {}),
        "seeds_from": seed_origins(store, run.id),
        "migrations": [
            {"node": m.node_id, "from": m.from_island, "to": m.to_island, "reason": m.reason} for m in moved
        ],
        "no_migration": None if moved else why_none(store, run, config.search),
        "runs_dir": str(store.runs_dir),
    }


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
    header = ["model", ">replies", ">again", ">in", ">cached", ">out", ">reasoning", ">s/reply", ">USD"]
    if not any(group.input_tokens + group.output_tokens + group.broken + group.failed for group in models):
        return TableData(header, [])
    rows = [
        [
            group.group,
            str(group.replies),
            str(group.broken + group.failed),
            thousands(group.input_tokens),
            thousands(group.cached_tokens),
            thousands(group.output_tokens),
            thousands(group.reasoning_tokens),
            number(group.latency_s, 1),
            "unknown" if group.unpriced else f"{group.cost:.4f}",
        ]
        for group in models
    ]
    notes = []
    if lost := sum(group.lost for group in models):
        notes.append(f"{lost} calls were under way when a process died: what they cost is not known")
    if any(group.estimated for group in models):
        notes.append("a server reports no token usage: its tokens are estimated")
    return TableData(header, rows, ["reasoning", "cached", "s/reply", "again"], notes=notes)


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
    lines = [f"measured again side by side: {_with_interval('node', first['node_id'], first['as_score'])}"]
    for place, other in enumerate(others, start=2):
        ratio = other["behind"]
        verdict = "" if other["is_behind"] else "; the two cannot be told apart"
        lines.append(
            f"  {place}. {_with_interval('node', other['node_id'], other['as_score'])}; the winner is "
            f"{ratio['value'] - 1:+.1%} ({ratio['low'] - 1:+.1%} to {ratio['high'] - 1:+.1%}) ahead{verdict}"
        )
    return "\n".join(lines)


def found_since_text(store: Store, run_id: str) -> str:
    """A line on a node that may be better than the winner and was measured once; empty without one."""
    node = finalists.found_since(store, run_id)
    if node is None:
        return ""
    return f"found since: node {node.id}, AS {number(node.as_score, 4)} in one measurement"


def _with_interval(word: str, node_id: int, score: dict[str, float]) -> str:
    return (
        f"{word} {node_id}, AS {number(score['value'], 4)} (95% {number(score['low'])} to "
        f"{number(score['high'])})"
    )


def best_data(store: Store, node: Node, exported: Path | None) -> dict[str, Any]:
    """The best node as plain data."""
    evaluation = confirmed_evaluation(store, node)
    return {
        "node": node.id,
        "island": node.island,
        "from": maker_text(store, node),
        **{key: value for key, value in score_data(node, evaluation).items() if key != "measured_again"},
        "confirmed": node.id in finalists.scores(finalists.last_series(store, node.run_id)),
        "gmean_speedup": evaluation.gmean_speedup,
        "note": short_note(node.note),
        "path": str(exported) if exported else None,
        "graphs": [graph.model_dump(mode="json", include=_GRAPH_FIELDS) for graph in evaluation.graphs],
    }


def shown_state(store: Store, run: Run) -> str:
    """The run's state as a person sees it: `interrupted` where a process died over it."""
    return "interrupted" if run.state == "running" and not sessions.is_driven(store, run.id) else run.state


def run_text(store: Store, run: Run, config: Config, exported: Path | None = None) -> str:
    """The final summary of a run."""
    data = run_data(store, run, config, exported)
    flag = runs_dir_flag(store)
    of = "" if run.limit is None else f"/{run.limit}"
    parts = [
        f"run {run.id} {data['state']}: {run.stop_reason or 'not ended'} "
        f"({data['episodes']}{of} episodes, {data['nodes']} nodes, {run.evaluations} evaluations, "
        f"{thousands(run.tokens)} tokens, {clock(run.elapsed_s)})"
    ]
    best = finalists.winner(store, run.id)
    if best is None:
        parts.append("best pass: none; no candidate was correct on every graph")
    else:
        note = f": {data['best']['note']}" if data["best"]["note"] else ""
        parts.append(
            f"best pass: node {best.id}, {data['best']['from']}, AS {number(data['best']['as_score'], 4)}"
            f"{', measured again' if data['best']['confirmed'] else ''}, "
            f"correct on every graph{note}"
        )
        parts.append(finalists_text(data["finalists"]))
        parts.append(found_since_text(store, run.id))
        parts.append(str(graph_table(confirmed_evaluation(store, best))))
        if data["best"]["path"]:
            parts.append(f"its files: {data['best']['path']}")
    rows = [
        [
            str(island["island"]),
            island["role"],
            str(island["episodes"]),
            number(island["best_as"]),
            statuses_text(island["statuses"]) or "none",
        ]
        for island in data["islands"]
    ]
    header = [">island", "role", ">episodes", ">best AS", "nodes"]
    parts.append(table(header, rows, wrap=["nodes"]))
    if data["seeds"]:
        parts.append(f"seeds: {statuses_text(data['seeds'])} ({'; '.join(data['seeds_from'])})")
    parts.append(str(spending_table(ledger.spent(store, run.id))))
    parts += [f"migration of node {m['node']} to island {m['to']}: {m['reason']}" for m in data["migrations"]]
    if data["no_migration"]:
        parts.append(data["no_migration"])
    parts.append(f"the tree: passagent show {run.id}{flag}")
    if best is not None:
        parts.append(f"export:   passagent best {run.id}{flag} --out pass_dir")
    parts.append(f"go on:    {resume_command(store, run.id)}{_wider(data, config)}")
    return "\n".join(part for part in parts if part)


_LIMITS = {
    "target_as": "--target-as",
    "max_evaluations": "--max-evals",
    "max_tokens": "--max-tokens",
    "max_cost": "--max-cost",
    "max_stagnation": "--max-stagnation",
    "until": "--until",
    "until_sol": "--set search.until_sol",
}


def _wider(data: dict[str, Any], config: Config) -> str:
    """Say what a finished run needs to go on: more episodes, or another one of its limits changed."""
    if data["state"] != "finished":
        return ""
    if data["episodes"] >= data["iters"]:
        return f" --iters {data['iters'] * 2}"
    flags = [flag for key, flag in _LIMITS.items() if getattr(config.search, key) is not None]
    return f" with a wider limit ({', '.join(flags)})" if flags else ""  # each command has --max-time anew


def maker_text(store: Store, node: Node) -> str:
    """Where a node is from, in words."""
    seed = f"a seed ({author_of(store, runs.get_run(store, node.run_id), node)})"
    return seed if node.island == SEEDS else f"island {node.island}"


def statuses_text(counts: dict[str, int]) -> str:
    """Write `3 ok, 1 refused`."""
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def run_row(store: Store, run: Run) -> dict[str, Any]:
    """A run in a line: the best that its model made, and what it began with."""
    best = finalists.winner(store, run.id, by_model=True)
    seed = next(iter(bests.best_of_island(store, run.id, SEEDS, 1)), None)
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
