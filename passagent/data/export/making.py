"""A data set out of databases: chosen, checked, written, with a card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from passagent.data.export.checks import EvaluationTasks, check_node, check_secrets
from passagent.data.export.example import Example, functions, steps, whole
from passagent.data.export.formats import FORMATS
from passagent.data.export.formats.chat_messages import trl_message
from passagent.data.export.formats.parquet import check_pyarrow, write_parquet
from passagent.data.export.selection import (
    Chosen,
    JudgedEpisode,
    Revision,
    failures,
    read_episodes,
    select,
)
from passagent.data.export.writing import Summary, Writer
from passagent.errors import UsageError
from passagent.store import Store
from passagent.store.episodes import get_episode
from passagent.store.runs import get_run
from passagent.store.trajectories import Trajectory, trajectory
from passagent.system.resumable import whole_directory
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

_FAILURES = "failures_"
"""The beginning of the names of files of negative examples."""
_PREFERENCES = "preferences.jsonl"


def make(runs_dirs: Sequence[str], options: Mapping[str, Any], command: str) -> Summary:
    """Write the data set that the complete options of `passagent export` ask for.

    `command`: for its card. Raises UsageError, and PassagentError for what must not go out.
    """
    form, out, against = FORMATS[options["format"]], Path(options["out"]), list(options["against"] or ())
    if options["parquet"] and not form.is_table:
        raise UsageError(f"--parquet: rows of {form.name} are no table")
    if options["parquet"]:
        check_pyarrow()
    if options["pairs"] and form.name != "trl":
        raise UsageError("--pairs is for --format trl: other trainers have no common form for preferences")
    selection = {name: options[name] for name in ("keep", "by", "best_of", "per_sequence")}
    evaluation = evaluation_tasks(against)
    with reading_stores(runs_dirs) as stores:
        episodes = read_episodes(stores)
        chosen = select(episodes, **selection)
        wrong = failures(episodes) if options["failures"] else []
        if wrong:  # each is in one of the two
            chosen = [choice for choice in chosen if choice.columns["as_score"] is not None]
        if not chosen:
            raise UsageError(
                f"{', '.join(runs_dirs)}: finished episodes: {len(episodes)}, "
                "none of them is chosen; see what there is with passagent runs, and loosen --keep"
            )
        evaluation.check(
            choice.columns | {"subgraphs": choice.episode.subgraphs} for choice in [*chosen, *wrong]
        )
        with whole_directory(out) as directory:
            writer = Writer(directory, form, options["tokenizer"])
            for example in build(chosen):
                writer.add(example)
            for example in build(wrong):
                writer.add(example, _FAILURES)
            for pair in _pairs(chosen, episodes) if options["pairs"] else ():
                better, worse = build(pair)
                if row := _preference(better, worse):
                    writer.add_row(better, row, _PREFERENCES)
            summary = writer.finish({"command": command, "parquet": options["parquet"]})
            if options["parquet"]:
                for name in summary.files:
                    write_parquet(directory / name, (directory / name).with_suffix(".parquet"))
    return summary


@contextmanager
def reading_stores(runs_dirs: Sequence[str]) -> Iterator[list[Store]]:
    """Open the databases in `runs_dirs`, each of which stays in one state meanwhile. Raises UsageError."""
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(runs_dir, create=False)) for runs_dir in runs_dirs]
        for store in stores:
            stack.enter_context(store.reading())
        yield stores


def evaluation_tasks(words: list[str]) -> EvaluationTasks:
    """Load the tasks that nothing may be shared with. Raises UsageError, TaskError."""
    return EvaluationTasks(load_task(path) for path in (find_tasks(words) if words else []))


def build(chosen: Iterable[Chosen]) -> Iterator[Example]:
    """Read the chosen examples, one at a time, and check each. Raises checks.NotFit.

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
        example = whole(read) if choice.revision is None else steps(read)[choice.revision.node]
        files = {r.files: check_node(episode.store, name, r) for r in choice.revisions}
        check_secrets(name, [read.model_dump(), files])
        columns = choice.columns | (
            {"credit": [{"node": r.node, **_credit(r)} for r in choice.revisions]}
            if choice.revision is None
            else _credit(choice.revision)
        )
        columns |= {
            "operators": choice.columns["operators"].split(),
            "subgraphs": list(episode.subgraphs),
            "reasoning": example.reasoning,
            "files": files,
        }
        yield replace(example, columns=columns)


def _credit(revision: Revision) -> dict[str, Any]:
    return {"reward": revision.reward, "return": revision.returns, "advantage": revision.advantage}


def _pairs(chosen: Iterable[Chosen], episodes: Iterable[JudgedEpisode]) -> list[tuple[Chosen, Chosen]]:
    """Pair each group's best of `chosen` with every episode that is worse beyond the intervals.

    A group is of one task, model and start. An episode that left nothing correct is worse than any other.
    """
    groups = dict[tuple[Any, ...], list[JudgedEpisode]]()
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
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
        if other is not choice.episode and _best_as(other, "high") < _best_as(choice.episode, "low")
    ]


def _best_as(episode: JudgedEpisode, end: str) -> float:
    """Return the largest AS of its correct candidates, at the `low` or the `high` end of the interval."""
    return max((getattr(r, end) or 0.0 for r in episode.revisions if r.status == "ok"), default=0.0)


def _preference(better: Example, worse: Example) -> dict[str, Any] | None:
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
        "prompt": [*map(trl_message, better.turns[:begin])],
        "chosen": [*map(trl_message, better.turns[begin:])],
        "rejected": [*map(trl_message, worse.turns[begin:])],
        "tools": functions(better),
        "chosen_as": better.columns["as_score"],
        "rejected_as": worse.columns["as_score"],
        "model": better.columns["model"],
        "task": better.columns["task"],
    }
