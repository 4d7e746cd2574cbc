"""Memory across runs: what a run takes from the library and what it leaves there (docs/experience.md)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from passagent.config import Config
from passagent.errors import InfrastructureError, PassagentError
from passagent.evaluator.result import Evaluation
from passagent.evaluator.target import kind_of
from passagent.experience import exemplars
from passagent.experience.exemplars import Found
from passagent.sandbox.environment import ask_module
from passagent.search import finalists
from passagent.search.finalists import confirmed_evaluation
from passagent.store import Run, Store, nodes
from passagent.store.pass_library import KeptPass, PassLibrary, library_path, licence_of
from passagent.tasks import Task, load_task
from passagent.tasks.reader import Subgraph
from passagent.tasks.tasklist import find_tasks


@dataclass(frozen=True)
class Memory:
    """The library, as a task sees it."""

    path: Path
    task: Task
    hashes: tuple[tuple[str, str] | None, ...]
    """Structure and instance of each subgraph; None: it is not one graph."""
    excluded: frozenset[str]
    """Hashes and keys of the tasks of `experience.exclude`."""
    config: Config

    @property
    def marks(self) -> frozenset[str]:
        """All that this task is known by."""
        hashes = [text for pair in self.hashes if pair for text in pair]
        return frozenset([*hashes, self.task.key, *(subgraph.source_key for subgraph in self.task.subgraphs)])

    @property
    def is_excluded(self) -> bool:
        """Tell whether nothing of this task may be stored."""
        return bool(self.marks & self.excluded)

    def find(self, least: int = 0) -> Found:
        """The seed and the examples for the task: as many as the settings say, or at least `least`."""
        with PassLibrary.open(self.path) as library:
            stored = exemplars.kept(library.passes())
        pairs = [pair for pair in self.hashes if pair]
        fingerprint = exemplars.fingerprint(self.task, [p[0] for p in pairs], [p[1] for p in pairs])
        target = kind_of(self.config.evaluator.device)
        limit = max(least, self.config.experience.examples)
        return exemplars.retrieve(fingerprint, [*stored, *exemplars.shipped()], target, limit, self.excluded)

    def seed(self) -> tuple[dict[str, str], str] | None:
        """The files of the pass that is known for this very task, and where they are from, if any is."""
        retrieved = self.find().seed if self.config.experience.seeds else None
        if retrieved is None:
            return None
        place = "of passagent" if retrieved.exemplar.source == "shipped" else self.path
        return retrieved.exemplar.files, f"library {place}, {retrieved.exemplar.task}"

    def remember(self, store: Store, run: Run, device_name: str) -> None:
        """Keep the run's best pass as an exemplar of each graph, if it is faster than eager."""
        best = finalists.winner(store, run.id)
        if self.is_excluded or best is None or best.evaluation_id is None:
            return
        evaluation, author = confirmed_evaluation(store, best), nodes.author_of(store, run, best)
        if (evaluation.as_score or 0.0) <= 1 or author.startswith("library "):
            return
        files, origin = nodes.get_files(store, best), f"{store.runs_dir.resolve()} {run.id}"
        with PassLibrary.open(self.path) as library, library.transaction():
            graphs = {graph.name: graph for graph in evaluation.graphs}
            for subgraph, pair in zip(self.task.subgraphs, self.hashes, strict=True):
                graph = graphs.get(subgraph.name)
                if pair is not None and graph is not None and graph.speedup is not None:
                    entry = kept_pass(subgraph, pair, evaluation, files, origin, author)
                    operators = ", ".join(self.task.operators)
                    library.keep(replace(entry, operators=operators, device=device_name))


def open_memory(config: Config, task: Task, runs_dir: Path, needs_torch: bool = False) -> Memory | None:
    """The library as a run of `task` sees it; None where it is off. Raises UsageError, also for `exclude`.

    `needs_torch`: this process imports torch in any case.
    """
    path = library_path(config.experience.library, runs_dir)
    if path is None:
        return None
    excluded: set[str] = set()
    for place in find_tasks(config.experience.exclude) if config.experience.exclude else []:
        other = load_task(place)
        excluded |= Memory(path, other, known_hashes(path, other, needs_torch), frozenset(), config).marks
    return Memory(path, task, known_hashes(path, task, needs_torch), frozenset(excluded), config)


def known_hashes(path: Path, task: Task, needs_torch: bool = False) -> tuple[tuple[str, str] | None, ...]:
    """Structure and instance of each of the task's subgraphs, computed once for each library."""
    with PassLibrary.open(path) as library:
        hashes = library.task_hashes(task.key)
        if hashes is None:
            hashes = [text or "" for pair in _hashed(task, needs_torch) for text in (pair or ("", ""))]
            library.keep_task(task.key, task.name, hashes)
    pairs = list(zip(hashes[::2], hashes[1::2], strict=True))
    return tuple(pair if all(pair) else None for pair in pairs)


def _hashed(task: Task, needs_torch: bool) -> list[tuple[str, str] | None]:
    """The hashes, computed here if this process imports torch in any case, else in one that does."""
    if needs_torch or "torch" in sys.modules:
        from passagent.tasks.extract.structural_hash import hashes_of

        return hashes_of(task)
    try:
        hashes = ask_module("passagent.tasks.extract.structural_hash", str(task.path))
    except InfrastructureError as error:
        text = f"{task.path}: cannot be hashed ({error}); --library off does without"
        raise PassagentError(text) from error
    return [tuple(pair) if pair else None for pair in hashes]


def kept_pass(
    subgraph: Subgraph,
    hashes: tuple[str, str],
    evaluation: Evaluation,
    files: dict[str, str],
    origin: str,
    model: str,
) -> KeptPass:
    """A pass as the library keeps it for one of the subgraphs that it was measured on."""
    graph = next(graph for graph in evaluation.graphs if graph.name == subgraph.name)
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(subgraph.path.iterdir())
        if file.is_file()
    }
    over = graph.vs_reference or graph.speedup
    return KeptPass(
        instance=hashes[1],
        structure=hashes[0],
        device=evaluation.device,
        torch=str(evaluation.environment.get("torch", "")),
        operators="",
        shapes=exemplars.shape_class(subgraph.inputs),
        task=json.dumps(texts),
        files=json.dumps(files),
        plan=evaluation.plans or "",
        dispatch=evaluation.dispatch,
        reference=evaluation.reference,
        speedup=over.e2e if over else 1.0,
        as_score=evaluation.as_score or 0.0,
        as_low=evaluation.as_low,
        as_high=evaluation.as_high,
        run=origin,
        model=model,
        licence=licence_of(model),
    )
