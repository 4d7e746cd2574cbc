"""Learned hints in the library: what distillers wrote, which episodes were offered it, and what came of it.

Rows are added and never rewritten: a run that was killed writes what it may have written before once more. A
hint that retires keeps its text and its outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from passagent import __version__
from passagent.errors import UsageError, nearest
from passagent.experience.hint_trials import Arm, Learned, State, Tallies, Tally, Trial, state_after, uplift
from passagent.experience.hints import Hint
from passagent.store.database import now
from passagent.store.library import Library

MAX_ADVICE = 400
"""Characters of a learned hint."""


class LearnedHint(Hint):
    """A hint that a model wrote: its text is data of bounded size, in one line, without code."""

    @field_validator("advice")
    @classmethod
    def _is_data(cls, value: str) -> str:
        text = " ".join(value.split())
        if len(text) > MAX_ADVICE:
            raise ValueError(f"{len(text)} characters, {MAX_ADVICE} are allowed")
        if "```" in text or "~~~" in text:
            raise ValueError("holds a code fence; write it in words")
        return text


class Lesson(BaseModel):
    """What a distiller made of an episode: a new hint, votes on others, hints that it would retire."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hint: LearnedHint | None = None
    votes: dict[str, bool] = {}
    """Of a hint's id: whether the episode speaks for it."""
    retire: list[str] = []
    """Hints that it would take out of use: a vote against each, which the evidence may confirm."""


@dataclass(frozen=True)
class Source:
    """The episode that something was learned from."""

    run: str
    episode: int
    task: str
    """The task's key."""
    author: str
    """The distiller."""


@dataclass(frozen=True)
class Offer:
    """A learned hint that an episode was offered: a row of `outcomes`."""

    run: str
    episode: int
    hint: str
    task: str
    label: str
    family: str
    device: str
    shown: int
    propensity: float


@dataclass(frozen=True)
class Outcome:
    """What came of an episode."""

    node: int | None
    """Its best correct candidate."""
    used: bool | None
    """Whether its author said that it used the hint; None: not known."""
    gain: float
    low: float | None
    high: float | None
    """Log gain in AS and the ends of its interval."""


@dataclass(frozen=True)
class Entry:
    """A hint with all that is kept of it."""

    learned: Learned
    source: Source
    version: str
    """Of passagent."""
    created_at: str
    why: str
    """Why it is in this state."""


class HintLibrary(Library):
    """The learned hints of an open library."""

    def learn(self, lesson: Lesson, source: Source) -> None:
        """Add what was learned from an episode. A hint that is there stays as it is, and so does a vote."""
        with self.transaction():
            if lesson.hint is not None:
                self._add(lesson.hint, source)
            for hint, helps in (lesson.votes | dict.fromkeys(lesson.retire, False)).items():
                self.run(
                    "INSERT OR IGNORE INTO votes (run, episode, hint, helps) "
                    "SELECT :run, :episode, id, :helps FROM hints WHERE id = :hint",
                    {"run": source.run, "episode": source.episode, "hint": hint, "helps": int(helps)},
                )
            for hint in lesson.retire:
                self._judge(hint, is_asked=True)

    def _add(self, hint: Hint, source: Source) -> bool:
        added = self.run(
            "INSERT OR IGNORE INTO hints (id, hint, state, task, run, episode, author, version, created_at) "
            "VALUES (:id, :hint, 'probation', :task, :run, :episode, :author, :version, :at)",
            {
                "id": hint.id,
                "hint": hint.model_dump_json(),
                "version": __version__,
                "at": now(),
                **vars(source),
            },
        )
        return added.rowcount > 0

    def entries(self, without: Collection[str] = ()) -> list[Entry]:
        """All hints, the oldest first; `without` those of tasks with one of these hashes."""
        rows = self.rows(
            "SELECT hints.*, coalesce(sum(votes.helps), 0) AS helps, "
            "coalesce(sum(1 - votes.helps), 0) AS harms "
            "FROM hints LEFT JOIN votes ON votes.hint = hints.id GROUP BY hints.id ORDER BY hints.rowid"
        )
        left_out = self.tasks_with(without)
        return [_entry(row) for row in rows if row["task"] not in left_out]

    def entry(self, word: str) -> Entry:
        """The hint of this id. Raises UsageError."""
        entries = {entry.learned.hint.id: entry for entry in self.entries()}
        if word not in entries:
            raise UsageError(f"{self.path}: no learned hint '{word}'{nearest(word, list(entries))}")
        return entries[word]

    def tallies(self, without: Collection[str] = ()) -> Tallies:
        """Gains by hint, arm and whether it was shown; `without` those on tasks with one of these hashes."""
        left_out = json.dumps(sorted(self.tasks_with(without)))
        rows = self.rows(
            "SELECT hint, label, family, device, shown, count(*) AS n, sum(gain) AS total FROM outcomes "
            "WHERE gain IS NOT NULL AND task NOT IN (SELECT value FROM json_each(:left_out)) "
            "GROUP BY hint, label, family, device, shown",
            {"left_out": left_out},
        )
        return {
            (row["hint"], Arm(row["label"], row["family"], row["device"]), bool(row["shown"])): Tally(
                row["n"], row["total"]
            )
            for row in rows
        }

    def offered(self, run: str, episode: int) -> Offer | None:
        """What an episode was offered before its process died."""
        rows = self.rows(
            f"SELECT {', '.join(_OFFER)} FROM outcomes WHERE run = :run AND episode = :episode",
            {"run": run, "episode": episode},
        )
        return Offer(*rows[0]) if rows else None

    def offer(self, offer: Offer) -> None:
        """Store what an episode is offered, before it is shown."""
        names = ", ".join(_OFFER)
        values = ", ".join(f":{name}" for name in _OFFER)
        self.run(
            f"INSERT OR IGNORE INTO outcomes ({names}, offered_at) VALUES ({values}, :at)",
            {**vars(offer), "at": now()},
        )

    def unsettled(self, run: str) -> list[int]:
        """Episodes of a run that were offered a hint, and of which nothing is known yet."""
        sql = "SELECT episode FROM outcomes WHERE run = :run AND gain IS NULL ORDER BY episode"
        return [row["episode"] for row in self.rows(sql, {"run": run})]

    def settle(self, run: str, episode: int, outcome: Outcome) -> None:
        """Store what came of an episode, once; its hint leaves probation or retires where that shows it."""
        names = {"run": run, "episode": episode, **vars(outcome)}
        names["used"] = None if outcome.used is None else int(outcome.used)
        with self.transaction():
            changed = self.run(
                "UPDATE outcomes SET node = :node, used = :used, gain = :gain, low = :low, high = :high "
                "WHERE run = :run AND episode = :episode AND gain IS NULL RETURNING hint",
                names,
            ).fetchall()
            for row in changed:
                self._judge(row["hint"])

    def _judge(self, hint: str, is_asked: bool = False) -> None:
        """Let the evidence decide what becomes of a hint, if there is one of this id."""
        rows = self.rows("SELECT state FROM hints WHERE id = :hint", {"hint": hint})
        found = uplift(self.trials(hint))
        for row in rows:
            if (state := state_after(row["state"], found, is_asked)) != row["state"]:
                self._set(hint, state, f"uplift {found.low:+.3f} to {found.high:+.3f}")

    def trials(self, hint: str) -> list[Trial]:
        """The episodes that were offered a hint and have ended, in order."""
        sql = (
            "SELECT task, shown, propensity, gain FROM outcomes WHERE hint = :hint AND gain IS NOT NULL "
            "ORDER BY rowid"
        )
        rows = self.rows(sql, {"hint": hint})
        return [Trial(row["task"], bool(row["shown"]), row["propensity"], row["gain"]) for row in rows]

    def _set(self, hint: str, state: State, why: str) -> None:
        self.run(
            "UPDATE hints SET state = :state, why = :why, changed_at = :at WHERE id = :hint",
            {"state": state, "why": why, "at": now(), "hint": hint},
        )

    def keep_task(self, key: str, name: str, hashes: Sequence[str]) -> None:
        """Keep the hashes of a task's subgraphs, of both levels."""
        self.run(
            "INSERT OR REPLACE INTO tasks (key, name, hashes) VALUES (:key, :name, :hashes)",
            {"key": key, "name": name, "hashes": json.dumps(list(hashes))},
        )

    def hashes(self, key: str) -> list[str] | None:
        """Those of a task, if they are known."""
        rows = self.rows("SELECT hashes FROM tasks WHERE key = :key", {"key": key})
        return list(json.loads(rows[0]["hashes"])) if rows else None

    def tasks_with(self, hashes: Collection[str]) -> set[str]:
        """Keys of the tasks that have one of the hashes, or are named among them by their key."""
        if not hashes:
            return set()
        rows = self.rows(
            "SELECT DISTINCT tasks.key AS key FROM tasks, json_each(tasks.hashes) AS own "
            "WHERE own.value IN (SELECT value FROM json_each(:hashes))",
            {"hashes": json.dumps(sorted(hashes))},
        )
        return {*hashes, *(row["key"] for row in rows)}


_OFFER = list(Offer.__dataclass_fields__)


def _entry(row: Any) -> Entry:
    hint = Hint.model_validate_json(row["hint"])
    return Entry(
        Learned(hint, row["state"], row["helps"], row["harms"]),
        Source(row["run"], row["episode"], row["task"], row["author"]),
        row["version"],
        row["created_at"],
        row["why"],
    )
