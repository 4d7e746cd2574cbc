"""What became of a run: as plain data for `--json`, and as text for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.agent.prompt import short_note
from passagent.config import Config
from passagent.evaluator.result import Evaluation
from passagent.report.evaluation import graph_table
from passagent.report.spending import spending_data, spending_text
from passagent.report.text import clock, number, table, thousands
from passagent.search.migration import why_none
from passagent.store import Store, confirmations, evaluations, migrations, nodes, runs, workers
from passagent.store.nodes import Node
from passagent.store.runs import Run

_GRAPH_FIELDS = ("name", "dtype", "status", "speedup", "eager_ms", "compiled_ms", "max_abs_diff", "matches")


def run_data(store: Store, run: Run, config: Config, exported: Path | None = None) -> dict[str, Any]:
    """The run as one JSON object; `exported`: where the best pass was written."""
    best = confirmations.winner(store, run.id)
    counts = nodes.counts(store, run.id)
    islands = runs.islands(store, run.id)
    moved = migrations.list_migrations(store, run.id)
    return {
        "run": run.id,
        "task": run.task,
        "task_path": run.task_path,
        "model": run.model,
        "device": run.device,
        "seed": run.seed,
        "state": shown_state(store, run),
        "reason": run.stop_reason,
        "iters": run.iters,
        "episodes": sum(island.episodes for island in islands),
        "nodes": sum(sum(of_status.values()) for of_status in counts.values()),
        "evaluations": run.evaluations,
        "tokens": {"input": run.input_tokens, "output": run.output_tokens},
        "spending": spending_data(store, run.id),
        "elapsed_s": round(run.elapsed_s, 3),
        "best": best_data(store, best, exported) if best else None,
        "islands": [
            {
                "island": island.island,
                "role": island.role,
                "episodes": island.episodes,
                "best_as": island.best_as,
                "best_node": island.best_node,
                "statuses": counts.get(island.island, {}),
            }
            for island in islands
        ],
        "migrations": [
            {"node": m.node_id, "from": m.from_island, "to": m.to_island, "reason": m.reason} for m in moved
        ],
        "no_migration": None if moved else why_none(store, run, config.search.stagnation),
        "runs_dir": str(store.runs_dir),
    }


def best_data(store: Store, node: Node, exported: Path | None) -> dict[str, Any]:
    """The best node as plain data."""
    evaluation = evaluation_of(store, node)
    return {
        "node": node.id,
        "island": node.island,
        "as_score": evaluation.as_score,
        "first_as": node.as_score,
        "confirmed": confirmations.find_confirmation(store, node.id) is not None,
        "gmean_speedup": evaluation.gmean_speedup,
        "note": short_note(node.note),
        "path": str(exported) if exported else str(store.runs_dir / node.files_path),
        "graphs": [graph.model_dump(mode="json", include=set(_GRAPH_FIELDS)) for graph in evaluation.graphs],
    }


def evaluation_of(store: Store, node: Node) -> Evaluation:
    """The newest evaluation of a node that is done: a finalist's second one."""
    confirmation = confirmations.find_confirmation(store, node.id)
    evaluation_id = confirmation.evaluation_id if confirmation else node.evaluation_id
    assert evaluation_id is not None
    return Evaluation.model_validate(evaluations.get_evaluation(store, evaluation_id))


def shown_state(store: Store, run: Run) -> str:
    """The run's state as a person sees it: `interrupted` where a process died over it."""
    return "interrupted" if run.state == "running" and not workers.is_live(store, run.id) else run.state


def run_text(store: Store, run: Run, config: Config, exported: Path | None = None) -> str:
    """The final summary of a run."""
    data = run_data(store, run, config, exported)
    flag = runs_dir_flag(store)
    parts = [
        f"run {run.id} {data['state']}: {run.stop_reason or 'not ended'} "
        f"({data['episodes']}/{run.iters} episodes, {data['nodes']} nodes, {run.evaluations} evaluations, "
        f"{thousands(run.tokens)} tokens, {clock(run.elapsed_s)})"
    ]
    best = confirmations.winner(store, run.id)
    if best is None:
        parts.append("best pass: none; no candidate was correct on every graph")
    else:
        note = f": {data['best']['note']}" if data["best"]["note"] else ""
        parts.append(
            f"best pass: node {best.id}, island {best.island}, AS {number(data['best']['as_score'], 4)}"
            f"{', measured again' if data['best']['confirmed'] else ''}, "
            f"correct on every graph{note}"
        )
        parts.append(graph_table(evaluation_of(store, best).graphs))
        parts.append(f"its files: {data['best']['path']}")
    parts.append(island_table(data["islands"]))
    spent = spending_text(store, run.id)
    if spent:
        parts.append(spent)
    parts += [f"migration of node {m['node']} to island {m['to']}: {m['reason']}" for m in data["migrations"]]
    if data["no_migration"]:
        parts.append(data["no_migration"])
    parts.append(f"the tree: passagent show {run.id}{flag}")
    if best is not None:
        parts.append(f"export:   passagent best {run.id}{flag} --out pass_dir")
    more = f" --iters {run.iters * 2}" if data["state"] == "finished" else ""
    parts.append(f"go on:    passagent resume {run.id}{flag}{more}")
    return "\n".join(parts)


def island_table(islands: list[dict[str, Any]]) -> str:
    """What each island did."""
    rows = [
        [
            str(island["island"]),
            island["role"],
            str(island["episodes"]),
            number(island["best_as"]),
            ", ".join(f"{count} {status}" for status, count in sorted(island["statuses"].items())) or "none",
        ]
        for island in islands
    ]
    return table([">island", "role", ">episodes", ">best AS", "nodes"], rows)


def runs_dir_flag(store: Store) -> str:
    """` --runs-dir DIR` where a command needs it to find this store."""
    import os

    default = Path(os.environ.get("PASSAGENT_RUNS_DIR", "runs")).absolute()
    if store.runs_dir == default:
        return ""
    here = Path.cwd()
    shown = store.runs_dir.relative_to(here) if store.runs_dir.is_relative_to(here) else store.runs_dir
    return f" --runs-dir {shown}"
