"""A data set out of databases: chosen, checked, written, with a card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from passagent.data.export.checks import check_node, check_overlap, check_secrets, without
from passagent.data.export.example import FILES, Example, Row, steps, whole
from passagent.data.export.formats import FORMATS
from passagent.data.export.selection import (
    Chosen,
    JudgedEpisode,
    Revision,
    read_episodes,
    reading_stores,
    select,
)
from passagent.data.export.writing import Summary, Writer
from passagent.errors import UsageError
from passagent.store.episodes import get_episode
from passagent.store.outputs import whole_directory
from passagent.store.runs import get_run
from passagent.store.trajectories import Trajectory, trajectory

_FAILURES = "failures_"
"""The beginning of the names of files of negative examples."""
_PREFERENCES = "preferences.jsonl"


def make(runs_dirs: Sequence[str], options: Mapping[str, Any], command: str) -> Summary:
    """Write the data set that the complete options of `passagent export` ask for.

    `command`: for its card. Raises UsageError, and PassagentError for what must not go out.
    """
    form = FORMATS[options["format"]]
    if options["pairs"] and form.name != "trl":
        raise UsageError("--pairs is for --format trl: other trainers have no common form for preferences")
    with reading_stores(runs_dirs) as stores:
        episodes = read_episodes(stores)
        chosen = select(
            episodes, **{name: options[name] for name in ("keep", "by", "best_of", "per_sequence")}
        )
        wrong = []
        if options["failures"]:
            wrong = [Chosen(e, None, e.columns) for e in episodes if e.columns["as_score"] is None]
        if wrong:  # each is in one of the two
            chosen = [choice for choice in chosen if choice.columns["as_score"] is not None]
        if not chosen:
            raise UsageError(
                f"{', '.join(runs_dirs)}: finished episodes: {len(episodes)}, "
                "none of them is chosen; see what there is with passagent runs, and loosen --keep"
            )
        every = [choice.columns | {"subgraphs": choice.episode.subgraphs} for choice in [*chosen, *wrong]]
        check_overlap(every, options["against"] or ())
        with whole_directory(Path(options["out"])) as directory:
            writer = Writer(directory, form, options)
            for example in build(chosen):
                writer.add(example)
            for example in build(wrong):
                writer.add(example, _FAILURES)
            for pair in _pairs(chosen, episodes) if options["pairs"] else ():
                better, worse = build(pair)
                if row := _preference(better, worse):
                    writer.add_row(better, row, _PREFERENCES)
            return writer.finish(command)


def build(chosen: Iterable[Chosen]) -> Iterator[Example]:
    """Read the chosen examples, one at a time, and check each. Raises PassagentError.

    An episode is read as it lies in the database: a secret in it is found by the check and not taken out.
    """
    last: tuple[JudgedEpisode, Trajectory] | None = None
    for choice in chosen:
        episode, name = choice.episode, choice.columns["id"]
        if last is None or last[0] is not episode:
            store = episode.store
            run, stored = get_run(store, episode.columns["run"]), get_episode(store, episode.episode_id)
            last = episode, trajectory(store, run, stored, clean=False)
        read = last[1]
        files = {r.files: check_node(episode.store, name, r) for r in choice.revisions}
        check_secrets(name, [read.model_dump(), files], without(name))
        columns = choice.columns | {
            "operators": choice.columns["operators"].split(),
            "subgraphs": list(episode.subgraphs),
            FILES: files,
        }
        if choice.revision is None:
            example = whole(read)
            columns["credit"] = [
                {"node": revision.node, **_credit(revision)} for revision in choice.revisions
            ]
        else:
            example = steps(read)[choice.revision.node]
            columns |= _credit(choice.revision)
        yield replace(example, columns=columns)


def _credit(revision: Revision) -> Row:
    return {"reward": revision.reward, "return": revision.returns, "advantage": revision.advantage}


def _pairs(chosen: Iterable[Chosen], episodes: Iterable[JudgedEpisode]) -> list[tuple[Chosen, Chosen]]:
    """Pair each group's best of `chosen` with every episode that is worse beyond the intervals.

    A group is of one task, model and start. An episode that left nothing correct is worse than any other.
    """
    groups = defaultdict[tuple[Any, ...], list[JudgedEpisode]](list)
    for episode in episodes:
        groups[episode.group].append(episode)
    best = dict[tuple[Any, ...], Chosen]()
    for choice in chosen:
        group = choice.episode.group
        if choice.columns["as_score"] is not None and (
            group not in best or _best_as(choice.episode, "low") > _best_as(best[group].episode, "low")
        ):
            best[group] = choice
    return [
        (choice, Chosen(other, None, other.columns))
        for group, choice in best.items()
        for other in groups[group]
        if _best_as(other, "high") < _best_as(choice.episode, "low")
    ]


def _best_as(episode: JudgedEpisode, end: str) -> float:
    """Return the largest AS of its correct candidates, at the `low` or the `high` end of the interval."""
    return max((getattr(r, end) or 0.0 for r in episode.revisions if r.status == "ok"), default=0.0)


def _preference(better: Example, worse: Example) -> Row | None:
    """Return the pair as TRL takes it; None where the two began with other messages.

    Trials of one task differ in their seed alone, which is the last word of the task message.
    """
    begin = next((place for place, turn in enumerate(better.turns) if turn.role == "assistant"), 0)

    def opening(example: Example) -> list[tuple[str, str]]:
        messages = [turn.message for turn in example.trajectory.messages[:begin]]
        seeds = [str(message.get("data", {}).get("seed", "")) for message in messages]
        return [(m["role"], m["content"].removesuffix(seed)) for m, seed in zip(messages, seeds, strict=True)]

    if begin == 0 or opening(better) != opening(worse):
        return None
    return {
        "id": f"{better.id}>{worse.id}",
        "prompt": [turn.message for turn in better.turns[:begin]],
        "chosen": [turn.message for turn in better.turns[begin:]],
        "rejected": [turn.message for turn in worse.turns[begin:]],
        "tools": better.functions,
        "chosen_as": better.columns["as_score"],
        "rejected_as": worse.columns["as_score"],
        "model": better.columns["model"],
        "task": better.columns["task"],
    }
