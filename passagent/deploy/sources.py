"""Where the passes of a package come from: runs, and directories that `passagent best` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from passagent.deploy.package_writing import Source
from passagent.errors import UsageError
from passagent.evaluator.candidate import PLAN, PLANS, Candidate
from passagent.search.comparison import confirmed_evaluation
from passagent.search.setup import stored_task
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.seeds import author_of
from passagent.tasks import load_task


def read_sources(sources: Sequence[str], tasks: Sequence[str], runs_dir: str) -> Iterator[Source]:
    """The candidates that the words name: a run's best, or a directory with its task among `tasks`.

    Raises UsageError, PassagentError.
    """
    directories = [word for word in sources if Path(word).is_dir()]
    if len(directories) != len(tasks):
        raise UsageError(
            f"{len(directories)} directories, {len(tasks)} tasks: give --task TASK for each directory"
        )
    given = iter(tasks)
    for word in sources:
        yield _directory(word, next(given)) if word in directories else _run(word, runs_dir)


def _directory(word: str, task: str) -> Source:
    files = Candidate.from_dir(word).files
    plans = files if PLAN in files else Candidate.from_dir(Path(word) / PLANS).files
    name = Path(word).resolve().name
    return Source(name, {} if plans is files else files, plans, load_task(task))


def _run(word: str, runs_dir: str) -> Source:
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, word)
        node = confirmations.winner(store, run.id)
        if node is None or node.evaluation_id is None:
            raise UsageError(f"run {run.id} has no correct pass yet; nothing to package")
        plans = nodes.get_plans(store, node)
        if not plans:
            raise UsageError(f"run {run.id} was measured with --dispatch python: its best pass has no plan")
        evaluation = confirmed_evaluation(store, node)
        facts = {
            "source": {"run": run.id, "node": node.id, "model": author_of(store, run, node)},
            "measured": _measured(evaluation),
        }
        return Source(run.id, nodes.get_files(store, node), plans, stored_task(run), facts)


def _measured(evaluation: Any) -> dict[str, Any]:
    """What the manifest says of an evaluation."""
    speedups = {
        graph.name: graph.speedup.model_dump() for graph in evaluation.graphs if graph.speedup is not None
    }
    return {
        "as_score": evaluation.as_score,
        "as_interval": [evaluation.as_low, evaluation.as_high],
        "device": evaluation.device,
        "dispatch": evaluation.dispatch,
        "reference": evaluation.reference,
        "speedups": speedups,
        "environment": evaluation.environment,
    }
