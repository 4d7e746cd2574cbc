"""References drawn ahead: the next subgraph's while the candidate is checked on one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from passagent.evaluator.baseline import Baseline
from passagent.evaluator.reference import Reference
from passagent.tasks.reader import Subgraph


class Drawing:
    """The references of an evaluation's subgraphs, in order, from a thread beside."""

    def __init__(self, baseline: Baseline, dispatch: str, subgraphs: Sequence[Subgraph]) -> None:
        """Begins with the first one."""
        self._baseline, self._dispatch = baseline, dispatch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drawing")
        self._following = {one.name: other for one, other in itertools.pairwise(subgraphs)}
        self._drawn: tuple[Subgraph, Future[Reference]] | None = None
        self._begin(subgraphs[0])

    def get(self, subgraph: Subgraph) -> Reference:
        """The subgraph's reference, for its check. Raises TaskError and InfrastructureError."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            if drawn[0] is subgraph:
                return drawn[1].result()
            wait([drawn[1]])  # the one before was not checked
        return self._baseline.reference(subgraph, self._dispatch)

    def follow(self, subgraph: Subgraph) -> None:
        """Begin with the one after: it may close this one's arena, which must have been handed over."""
        if (following := self._following.get(subgraph.name)) is not None:
            self._begin(following)

    def finish(self) -> None:
        """Wait for what is drawn; nothing is drawn ahead any more."""
        self._thread.shutdown()

    def _begin(self, subgraph: Subgraph) -> None:
        self._drawn = subgraph, self._thread.submit(self._baseline.reference, subgraph, self._dispatch)
