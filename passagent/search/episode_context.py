"""The parts of an episode's prompt: parent, attempts, hints, knowledge, eager's figures."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from itertools import chain, zip_longest

from passagent.agent.context import Attempt, EpisodeContext, JudgedNode, changes, diagnosis_of
from passagent.config import Config
from passagent.errors import PassagentError
from passagent.evaluator.fleet.opening import LOCAL, threads_of
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference import eager
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.target import kind_of, target_of
from passagent.experience import knowledge
from passagent.experience.diagnosis import first_error
from passagent.experience.exemplars import Match
from passagent.experience.hints import LEARNED, Hint, LearnedHint, Situation, is_held_out, retrieve
from passagent.experience.knowledge import Passage
from passagent.search.finalists import evaluation_of
from passagent.search.islands import IslandView, is_draft, is_first
from passagent.search.session import EXPERT, Session
from passagent.store import SEEDS, Episode, Node, Store, hint_uses, nodes, runs
from passagent.tasks.reader import Task, library_rule

DRAFT_EXAMPLES = 5
"""Passes of other tasks that a draft is shown: it has no parent to learn from (Kernel Foundry 3.2)."""


def episode_context(session: Session, episode: Episode, parent: Node | None) -> EpisodeContext:
    """The context of `episode`, which names its parent; `best_as` is what its island knows of.

    The other islands' best is left out: it depends on which of them is faster. A draft sees nothing of the
    run before it (KernelEvolve 4: without memory context).
    """
    store, run_id = session.store, session.run.id
    island, scores = runs.get_island(store, run_id, episode.island), list[float]()
    search = session.config.search
    draft = is_draft(search, episode.number)
    is_seed = parent is not None and parent.island == SEEDS
    begins = parent is None or (is_seed and is_first(search.drafts, session.run.islands, episode.number))
    tried, more = list[Attempt](), 0
    if not draft:
        tried, more = attempts(session, episode, parent, island.nodes)
        best = IslandView(store, run_id, episode.island).best_before(episode.number)
        scores += [best] if best is not None and best > 0 else []
    scores += [parent.correct_as] if parent and parent.correct_as else []
    past: list[Match] = []
    if begins and episode.model != EXPERT and session.memory and session.config.experience.examples:
        past = session.memory.find(DRAFT_EXAMPLES if draft else 0).examples
    hints, held_out = hints_for(session, episode, parent)
    return EpisodeContext(
        task=session.task,
        target=target_of(session.config.evaluator),
        device_name=session.device_name,
        role=island.role,
        seed=episode.seed,
        parent=judged_node(store, parent) if parent else None,
        best_as=max(scores, default=None),
        attempts=tried,
        more_attempts=more,
        hints=hints,
        held_out=held_out,
        knowledge=passages(session, parent),
        past=past,
        machine=session.machine,
        threads=threads_of(session.config.evaluator),
        library=library_rule(session.config.evaluator.library, session.task.subgraphs),
        eager=session.eager or (),
        migrated=episode.migration is not None,
        limits=session.config.agent,
    )


def task_context(
    task: Task, config: Config, device_name: str, machine: Machine | None = None
) -> EpisodeContext:
    """The context of an episode that begins with the task alone, outside of a search."""
    return EpisodeContext(
        task=task,
        target=target_of(config.evaluator),
        device_name=device_name,
        role=config.search.roles[0],
        seed=0,
        machine=machine,
        threads=threads_of(config.evaluator),
        library=library_rule(config.evaluator.library, task.subgraphs),
        limits=config.agent,
    )


def judged_node(store: Store, node: Node) -> JudgedNode:
    """A node that is done, with its files and its evaluation."""
    return JudgedNode(node, nodes.get_files(store, node), evaluation_of(store, node))


def attempts(
    session: Session, episode: Episode, parent: Node | None, total: int
) -> tuple[list[Attempt], int]:
    """At most agent.siblings relatives of what the episode starts from, the newest last.

    And how many other candidates there are of those that the island has `made`.
    """
    limit, island = session.config.agent.siblings, episode.island
    if not limit:
        return [], 0
    nearest = relatives(session.store, episode, parent, limit)
    own_count = sum(node.island == island for node in [*nearest, *([parent] if parent else [])])
    return [attempt(session.store, node) for node in nearest], total - own_count


def hints_for(session: Session, episode: Episode, parent: Node | None) -> tuple[list[Hint], list[str]]:
    """Return the hints for the parent's diagnosis, learned ones first, and ids of those that are held out.

    The episode's seed decides which hints are drawn, and whether it sees the learned ones among them.
    """
    config, run, task = session.config, session.run, session.task
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
        )

    learned: list[Hint] = []
    if session.memory is not None and config.experience.learned:
        rows = hint_uses.learned(session.store, session.memory.excluded)
        written = [LearnedHint.model_validate_json(row.hint) for row in rows]
        # of several with the same text the oldest is shown
        learned = draw({hint.advice: hint for hint in reversed(written)}.values(), LEARNED, "learned")
    drawn = draw(session.hints, config.agent.hints, "hints")
    if is_held_out(episode.seed):
        return drawn, [hint.id for hint in learned]
    return [*learned, *drawn], []


_ASKED = {
    "start": "choose the region to fuse",
    "memory_bound": "memory: fewer bytes, access pattern",
    "latency_bound": "launch dispatch host cost",
    "unexplained": "inner loop vectorise registers parallel",
    "mismatch": "how a pattern matches",
    "inexact": "numerics round where eager rounds",
    "wrong_result": "numerics round exact tolerance",
    "refused": "what a replacement may do",
}
"""The search words for a diagnosis in the knowledge documents, where its name alone would find nothing."""


def passages(session: Session, parent: Node | None) -> list[Passage]:
    """Sections of the knowledge documents for the parent's diagnosis and the task's operators."""
    limit = session.config.agent.knowledge
    if not limit:
        return []
    label = diagnosis_of(parent).label
    query = _ASKED.get(label, label.replace("_", " "))
    target = target_of(session.config.evaluator)
    sections = knowledge.search(query, session.task.operators, limit=50, target=target)

    def is_useful(section: Passage) -> bool:  # prose and, if it has a GPU's figures, about this GPU
        name = section.path.rpartition("/")[2].partition(".")[0]
        is_other_gpu = re.fullmatch(r"[a-z]+\d+", name) and name not in session.device_name.lower()
        return section.path.endswith(".md") and not is_other_gpu

    return list(filter(is_useful, sections))[:limit]


MAX_FILES = 3
"""Changed files named of an attempt."""


def relatives(store: Store, episode: Episode, parent: Node | None, limit: int) -> list[Node]:
    """The candidates nearest to the start of `episode`, at most `limit`, in the order of their making.

    In turn one of the parent's ancestors, of what its own episode made after it, and of what later episodes
    of the island made from it (or from the task). Places left over go to the island's newest other nodes,
    then to the seeds. Only what was finished before the episode began is looked at, so the same is found
    whichever island is faster.
    """
    ahead = nodes.ancestors(store, parent, limit) if parent else []
    same_episode = nodes.of_episode(store, parent.episode_id) if parent else []
    later = [node for node in same_episode if parent and node.place > parent.place]
    after = nodes.newest_before(store, episode, limit, same_start=True)
    others = nodes.newest_before(store, episode, limit)
    seeds = nodes.best_of_island(store, episode.run_id, SEEDS, limit + 1)
    nearest = chain(*zip_longest(ahead, later, after), others, seeds)
    by_id: dict[int, Node] = {}
    for node in nearest:
        is_new = node is not None and node.status is not None and node.episode_id != episode.id
        if node is not None and is_new and (parent is None or node.id != parent.id) and len(by_id) < limit:
            by_id.setdefault(node.id, node)
    return sorted(by_id.values(), key=lambda node: (node.number, node.place))


def attempt(store: Store, node: Node) -> Attempt:
    """A candidate as a prompt shows it: what was changed, and why it failed."""
    files, changed, failure = nodes.get_files(store, node), "", ""
    if node.parent_id is not None:
        before = nodes.get_files(store, nodes.get_node(store, node.parent_id))
        edits = [str(change) for change in changes(before, files)]
        more = len(edits) - MAX_FILES
        changed = ", ".join(edits[:MAX_FILES] + ([f"{more} more files"] if more > 0 else [])) or "nothing"
    if node.status != "ok" and node.evaluation_id is not None:
        failure = first_error(evaluation_of(store, node, samples=False), files)
    return Attempt(node, changed, failure)


async def describe(session: Session, episode: Episode) -> None:
    """Have `session.eager` known before an episode's prompt is composed.

    The expert reads the task itself and is not held up. A task or machine that fails here fails at the first
    candidate, too. Raises Stopping soon after a person asks to stop.
    """
    if episode.island == SEEDS or session.model.name == EXPERT:
        return
    async with session.describing:
        if session.eager is None:
            try:
                session.eager = await session.in_time(_describe(session))
            except PassagentError as error:
                session.eager = ()
                session.events.note(f"eager could not be measured for the prompts: {error}")


async def _describe(session: Session) -> tuple[EagerGraph, ...]:
    """Ask the evaluator, once a day where it is this machine's."""
    config, evaluator = session.config.evaluator, session.evaluator
    if config.pool != LOCAL:
        return await evaluator.describe(session.task.path)
    device = first_device(config.device)
    if kept := eager.kept(session.task, config, device):
        return kept
    if figures := await evaluator.describe(session.task.path):
        eager.keep(session.task, config, device, figures)
    return figures
