"""Whether anything changed since a page was sent: asked every two seconds, so without a look at the rows."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from passagent.errors import PassagentError, UsageError
from passagent.store import Store, sessions

_REMEMBERED = 512
"""Addresses whose last answer is known."""


class Freshness:
    """The version of a runs directory, and the tags (ETag) of what was made of it.

    A tag is a hash of the page, so that who has it need not be sent it again. Where the version is that of
    the last answer, its tag is known without making the page.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._store: Store | None = None
        self._opened = ""
        self._lock = threading.Lock()
        self._tags: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def version(self, library: Path | None = None) -> str | None:
        """Changes with every commit, and when a process that works on a run ends; None: nothing is there.

        `library`: with every commit to it, too.
        """
        with self._lock:
            try:
                return f"{self._version()} {_stamps(library) if library else ''}"
            except PassagentError:
                self._close()
                return None

    def _version(self) -> str:
        if self._store is not None:
            try:
                self._store.check_in_place()
            except UsageError:
                self._close()
        if self._store is None:
            self._store = Store.open(self.runs_dir, create=False, to_look=True)
            self._opened = secrets.token_hex(8)
        rows = self._store.rows("SELECT id, run_id FROM sessions WHERE left_at IS NULL")
        alive = [row["id"] for row in rows if sessions.is_driven(self._store, row["run_id"])]
        [commits] = self._store.rows("PRAGMA data_version")  # those of other processes
        return f"{self._opened} {commits['data_version']} {alive}"

    def known_tag(self, address: str, version: str | None) -> str | None:
        """The tag of the page at `address`, if it was made of this version."""
        made = self._tags.get(address)
        return made[1] if made and made[0] == version else None

    def tag(self, address: str, version: str | None, body: bytes) -> str:
        """The tag of a page that was just made."""
        tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
        if version is not None:
            self._tags[address] = version, tag
            self._tags.move_to_end(address)
            while len(self._tags) > _REMEMBERED:
                self._tags.popitem(last=False)
        return tag

    def close(self) -> None:
        """Release the database."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _stamps(database: Path) -> list[tuple[int, int]]:
    """When a database and its log were written last, and their sizes."""
    found = []
    for path in (database, database.with_name(f"{database.name}-wal")):
        with suppress(FileNotFoundError):  # the log goes when the last one who writes does
            state = path.stat()
            found.append((state.st_mtime_ns, state.st_size))
    return found
