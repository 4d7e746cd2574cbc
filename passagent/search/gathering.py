"""What an episode is told: parent, attempts, hints, gathered from the store into an EpisodeContext."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Protocol

from passagent.agent.context import Attempt, EpisodeContext, HintView, ParentView
from passagent.agent.observe import observation, verdict
from passagent.config import Config, EvaluatorConfig
from passagent.evaluator.fleet.opening import threads_of
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import Evaluation
from passagent.evaluator.target import kind_of, target_of
from passagent.experience import knowledge, retrieve
from passagent.experience.diagnosis import START, Diagnosis
from passagent.experience.exemplars import Match
from passagent.experience.hints import LEARNED, Hint, LearnedHint, Situation, is_held_out
from passagent.experience.knowledge import Passage
from passagent.search.drafts import is_draft, is_first
from passagent.search.relatives import Told, attempt, relatives
from passagent.search.run_memory import Memory
from passagent.search.writers import EXPERT
from passagent.store import Store, bests, evaluations, hint_uses, nodes, runs
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run
from passagent.system import resources
from passagent.tasks import Task


class Known(Protocol):
    """What a prompt is composed from; a Session is one."""

    store: Store
    run: Run
    task: Task
    config: Config
    hints: list[Hint]
    device_name: str
    memory: Memory | None
    machine: Machine | None
    eager: tuple[EagerGraph, ...]
    views: dict[tuple[object, ...], ParentView]
    """Parents that were shown."""
    told: Told
    """Attempts that were told of."""
    bests: dict[int, tuple[int, float | None]]
    """Of each island: the number of its last episode, and what `best_known` said of it."""


MAX_VIEWS = 64
DRAFT_EXAMPLES = 5
"""Passes of other tasks that a draft is shown: it has no parent to learn from (Kernel Foundry 3.2)."""


def episode_context(known: Known, episode: Episode, parent: Node | None) -> EpisodeContext:
    """The context of `episode`, which names its parent; `best_as` is what its island knows of.

    The other islands' best is left out: it depends on which of them is faster. A draft is told of nothing
    that came before it in the run (KernelEvolve 4: without memory context).
    """
    store, run_id = known.store, known.run.id
    island, scores = runs.get_island(store, run_id, episode.island), list[float]()
    search = known.config.search
    draft = is_draft(search, episode.number)
    is_seed = parent is not None and parent.island == SEEDS
    begins = parent is None or (is_seed and is_first(search.drafts, known.run.islands, episode.number))
    shown, more = list[Attempt](), 0
    if not draft:
        shown, more = attempts(known, episode, parent, island.nodes)
        best = best_known(known, episode)
        scores += [best] if best is not None and best > 0 else []
    scores += [parent.as_score] if parent and parent.status == "ok" and parent.as_score else []
    hints, held_out = hints_for(known, episode, parent)
    return EpisodeContext(
        task=known.task,
        target=target_of(known.config.evaluator),
        device_name=known.device_name,
        role=island.role,
        seed=episode.seed,
        parent=parent_view(known, parent) if parent else None,
        best_as=max(scores, default=None),
        attempts=shown,
        more_attempts=more,
        hints=hints,
        held_out=held_out,
        knowledge=passages(known, parent),
        past=past_tasks(known, draft) if begins and episode.model != EXPERT else [],
        machine=known.machine,
        threads=threads_of(known.config.evaluator),
        eager=known.eager,
        migrated=bool(episode.migrated),
        limits=known.config.agent,
    )


def best_known(known: Known, episode: Episode) -> float | None:
    """See bests.best_known: it stays what it was when the episode began, but for the episode's migrant."""
    island = episode.island
    if known.bests.get(island, (None, None))[0] != episode.number:
        best = bests.best_known(known.store, known.run.id, island, episode.number)
        known.bests[island] = episode.number, best
    return known.bests[island][1]


def past_tasks(known: Known, draft: bool) -> list[Match]:
    """Passes of the tasks most like this one, found in other runs and faster than eager; more for a draft."""
    if known.memory is None or not known.config.experience.examples:
        return []
    return known.memory.find(DRAFT_EXAMPLES if draft else 0).examples


def parent_view(known: Known, parent: Node) -> ParentView:
    """The parent as the prompt shows it; an elite is the parent of many episodes."""
    key = parent.id, parent.evaluation_id, parent.status, parent.as_score, parent.diagnosis
    if key not in known.views:
        if len(known.views) == MAX_VIEWS:
            known.views.clear()
        known.views[key] = _view(known, parent)
    return known.views[key]


def _view(known: Known, parent: Node) -> ParentView:
    assert parent.evaluation_id is not None and parent.status is not None
    evaluation = Evaluation.model_validate(evaluations.get_evaluation(known.store, parent.evaluation_id))
    files = nodes.get_files(known.store, parent)
    return ParentView(
        node_id=parent.id,
        as_score=parent.as_score,
        status=parent.status,
        files=files,
        diagnosis=diagnosis_of(parent).text,
        observation=observation(evaluation, files=files),
        verdict=verdict(evaluation),
        is_seed=parent.island == SEEDS,
    )


def diagnosis_of(node: Node | None) -> Diagnosis:
    """The diagnosis stored with a node; of no node: the start."""
    return START if node is None or node.diagnosis is None else _diagnosis(node.diagnosis)


@functools.lru_cache(maxsize=64)
def _diagnosis(stored: str) -> Diagnosis:
    """An elite is the parent of many episodes."""
    found = json.loads(stored)
    return Diagnosis(found["label"], found["text"])


def attempts(known: Known, episode: Episode, parent: Node | None, made: int) -> tuple[list[Attempt], int]:
    """At most agent.siblings relatives of what the episode starts from, the newest last.

    And how many other candidates there are of those that the island has `made`.
    """
    limit, island = known.config.agent.siblings, episode.island
    if not limit:
        return [], 0
    found = relatives(known.store, episode, parent, limit)
    own = sum(node.island == island for node in [*found, *([parent] if parent else [])])
    return [attempt(known.store, node, known.told) for node in found], made - own


def hints_for(known: Known, episode: Episode, parent: Node | None) -> tuple[list[HintView], list[str]]:
    """Return the hints for the parent's diagnosis, learned ones first, and ids of those that are held out.

    The episode's seed decides which hints are drawn, and whether it sees the learned ones among them.
    """
    config, run, task = known.config, known.run, known.task
    if not config.agent.hints or episode.island == SEEDS:  # the expert reads none
        return [], []
    works = target_of(config.evaluator)
    dtypes = frozenset(subgraph.dtype for subgraph in task.subgraphs)
    situation = Situation(diagnosis_of(parent).label, frozenset(task.operators), kind_of(run.device), dtypes)

    def draw(hints: Iterable[Hint], limit: int, kind: str) -> list[Hint]:
        return retrieve(
            [hint for hint in hints if works.admits(hint.advice)],
            situation,
            limit,
            random.Random(f"{kind}:{episode.seed}"),
            (episode.island, run.islands),
        )

    learned: list[Hint] = []
    if known.memory is not None and config.experience.learned:
        rows = hint_uses.learned(known.store, known.memory.excluded)
        written = [LearnedHint.model_validate_json(row.hint) for row in rows]
        # of several with the same text the oldest is shown
        learned = draw({hint.advice: hint for hint in reversed(written)}.values(), LEARNED, "learned")
    shown = [HintView(hint.id, hint.advice) for hint in draw(known.hints, config.agent.hints, "hints")]
    if is_held_out(episode.seed):
        return shown, [hint.id for hint in learned]
    return [*(HintView(hint.id, hint.advice, is_learned=True) for hint in learned), *shown], []


_ASKED = {
    "start": "choose the region to fuse",
    "memory_bound": "memory: fewer bytes, access pattern",
    "latency_bound": "launch dispatch host cost",
    "instruction_bound": "inner loop vectorise registers parallel",
    "mismatch": "how a pattern matches",
    "inexact": "numerics round where eager rounds",
    "wrong_result": "numerics round exact tolerance",
    "refused": "what a replacement may do",
}
"""What the knowledge documents are asked for a diagnosis, where its name alone does not say it."""


def passages(known: Known, parent: Node | None) -> list[Passage]:
    """Sections of the knowledge documents for the parent's diagnosis and the task's operators."""
    limit = known.config.agent.knowledge
    if not limit:
        return []
    label = diagnosis_of(parent).label
    asked = _ASKED.get(label, label.replace("_", " "))
    return list(
        _passages(
            resources.roots(),
            asked,
            tuple(known.task.operators),
            known.config.evaluator.model_dump_json(),
            known.device_name,
            limit,
        )
    )


@functools.lru_cache(maxsize=256)
def _passages(
    roots: tuple[Path, ...],
    asked: str,
    operators: tuple[str, ...],
    evaluator: str,
    device_name: str,
    limit: int,
) -> list[Passage]:
    """The same for every episode that asks the same of the same documents (`roots`)."""
    works = target_of(EvaluatorConfig.model_validate_json(evaluator))
    found = knowledge.search(asked, operators, limit=50, target=works)
    return list(islice((one for one in found if _is_useful(one, device_name)), limit))


_GPU = re.compile(r"[a-z]+\d+")
"""Of the knowledge documents, those named after a GPU have its figures."""


def _is_useful(passage: Passage, device_name: str) -> bool:
    """Whether a section is prose; of a GPU's figures, about this GPU."""
    gpu = passage.path.rpartition("/")[2].partition(".")[0]
    is_other_gpu = _GPU.fullmatch(gpu) is not None and gpu not in device_name.lower()
    return passage.path.endswith(".md") and not is_other_gpu
