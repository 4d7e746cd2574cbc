"""References drawn ahead: the next subgraphs' while the candidate is checked on others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.reference.reference import Reference
from passagent.tasks.reader import Subgraph


class ReferencesAhead:
    """The references of an evaluation's subgraphs, in order, from a thread beside."""

    def __init__(self, baseline: Baseline, dispatch: str, subgraphs: Sequence[Subgraph], ahead: int) -> None:
        """Begins with the first `ahead` ones, which must be kept together."""
        self._baseline, self._dispatch = baseline, dispatch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drawing")
        self._left = deque(subgraphs)
        self._drawn: dict[str, Future[Reference]] = {}
        self._lock = threading.Lock()
        for _ in range(ahead):
            self.follow()

    def get(self, subgraph: Subgraph) -> Reference:
        """The subgraph's reference, for its check. Raises TaskError and InfrastructureError."""
        with self._lock:
            while subgraph.name not in self._drawn:
                self._begin()  # one before it was not checked
            drawn = self._drawn.pop(subgraph.name)
        return drawn.result()

    def follow(self) -> None:
        """Begin with one more: it may close the arena of one before, which must have been handed over."""
        with self._lock:
            if self._left:
                self._begin()

    def finish(self) -> None:
        """Wait for what is drawn; nothing is drawn ahead any more."""
        self._thread.shutdown()

    def _begin(self) -> None:
        subgraph = self._left.popleft()
        self._drawn[subgraph.name] = self._thread.submit(self._baseline.reference, subgraph, self._dispatch)
