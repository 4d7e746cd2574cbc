"""Beside an evaluation: the kernels of the candidate that comes next are built, into the trusted cache.

Two parts, apart for trust. What a candidate needs built is known only by running it, so it runs in a worker
of its own, but only while the other one is checked and nothing is timed: before the first timed call its
worker is dead. It is answered from the cache or told that its kernel is not built; what it asked for is built
meanwhile, and goes on being built beside timed calls: compilers alone, on cores that no timed call uses. (To
be nice alone would not do: where the kernel groups processes by session, it counts within a session only.)

Nothing but the cache comes of it. The candidate's own evaluation repeats everything and reports its failures.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.config import EvaluatorConfig
from passagent.evaluator import builds
from passagent.evaluator.baseline import Reference, described, load_request
from passagent.evaluator.channel import Arena
from passagent.evaluator.guards import static
from passagent.evaluator.judging import uses_triton
from passagent.evaluator.process import Worker
from passagent.evaluator.result import Candidate
from passagent.tasks.inputs import make_inputs
from passagent.tasks.reader import Subgraph, load_task

log = logging.getLogger("passagent.evaluator")

STEP_S = 10.0
"""What a worker may take for an answer or for its next wish, s."""
WISHES = 32
"""Builds that a candidate may ask for."""
MOST_BYTES = 64 << 20
"""Subgraphs with larger inputs are left to the evaluation: drawing them takes longer than building."""
_CACHED_S = 0.05
"""In this time a build that lies in the cache is there, s."""
_LOOK_S = 0.02
"""Between two looks at what is waited for, s."""
_NICE = 19

Captured = Callable[[Subgraph], Reference | None]
"""The reference of a subgraph if it is at hand."""


@dataclass(frozen=True)
class Next:
    """What is evaluated next, most likely."""

    task: Path
    candidate: Candidate


class LookAhead:
    """Of a referee. `offer` may be called from any thread; `open` and `shut` by the one that evaluates."""

    def __init__(
        self, fork: Callable[[], Worker], captured: Captured, config: EvaluatorConfig, cores: list[int]
    ) -> None:
        """`fork`: a worker for a candidate; `cores`: the compilers' own."""
        self.fork, self.captured, self.config = fork, captured, config
        self._runner = ThreadPoolExecutor(1, "look-ahead", settle, (cores,))
        self.builders = ThreadPoolExecutor(len(cores), "build-ahead", settle, (cores,))
        self._lock = threading.Lock()
        self._is_open = False
        self._next: Next | None = None
        self._look: _Look | None = None

    def offer(self, following: Next | None) -> None:
        """Build for `following`, in place of what was offered before, as soon as an evaluation allows it."""
        with self._lock:
            self._drop()
            self._next = following
            self._begin()

    def open(self, key: str | None) -> None:
        """An evaluation (of candidate `key`) begins: until `shut` another candidate may run beside it."""
        with self._lock:
            self._drop()
            if self._next is not None and self._next.candidate.key == key:
                self._next = None
            self._is_open = True
            self._begin()

    def shut(self) -> None:
        """When this returns, no candidate runs beside; builds go on."""
        with self._lock:
            self._is_open, look = False, self._look
            if look is not None:
                look.end()
        self._runner.submit(int).result()

    def close(self) -> None:
        """Begin nothing more; a compiler at work ends within its own limits."""
        self.offer(None)
        self.shut()
        self._runner.shutdown()
        self.builders.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        if self._is_open and self._next is not None:
            self._look, self._next = _Look(self, self._next), None
            self._runner.submit(self._look.run)

    def _drop(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.end()
            look.cancel()


class _Look:
    """One candidate, run for its wishes."""

    def __init__(self, means: LookAhead, following: Next) -> None:
        self._means, self._following = means, following
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._worker: Worker | None = None
        self._jobs: dict[str, Future[dict[str, Any]]] = {}
        self._unanswered = False

    def run(self) -> None:
        """Until every subgraph's builds are there, or `end`."""
        try:
            self._run()
        except Exception as error:  # whatever it is, the candidate's own evaluation reports it
            name = self._following.candidate.key[:12]
            log.info("looking ahead at %s: %s: %s", name, type(error).__name__, error)
        finally:
            with self._lock:
                worker, self._worker = self._worker, None
            if worker is not None:
                worker.kill()

    def end(self) -> None:
        """Kill the candidate; `run` returns soon."""
        with self._lock:
            self._over.set()
            if self._worker is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._worker.pid, signal.SIGKILL)

    def cancel(self) -> None:
        """Forget the builds that were not begun."""
        for job in list(self._jobs.values()):
            job.cancel()

    def _run(self) -> None:
        candidate = self._following.candidate
        left = [one for one in load_task(self._following.task).subgraphs if not self._is_large(one)]
        in_interpreter = self._means.config.device == "cpu" and uses_triton(candidate)
        if self._over.is_set() or in_interpreter or static.inspect(candidate):
            return
        while not any(self._means.captured(subgraph) for subgraph in left):
            if not left or self._over.wait(_LOOK_S):
                return
        worker = self._means.fork()
        with self._lock:
            self._worker = worker
        if not self._over.is_set() and self._ask(load_request(candidate.files, self._means.config)):
            while left and not self._over.is_set():
                left = [subgraph for subgraph in left if not self._is_built(subgraph)]
                while not self._over.wait(_LOOK_S) and not all(job.done() for job in self._jobs.values()):
                    pass

    def _is_large(self, subgraph: Subgraph) -> bool:
        sizes = [meta.numel * getattr(torch, meta.dtype).itemsize for meta in subgraph.inputs
                 if not meta.is_python_scalar]  # fmt: skip
        return sum(sizes) > MOST_BYTES

    def _is_built(self, subgraph: Subgraph) -> bool:
        """One audited call: whether it had all that it asked for. The inputs are drawn for this alone."""
        reference = self._means.captured(subgraph)
        if reference is None or self._over.is_set():
            return False
        values = make_inputs(subgraph, "cpu", secrets.randbits(62))
        values = [value.reshape(-1) if isinstance(value, torch.Tensor) else value for value in values]
        inputs = Arena.create(Arena.room([value for value in values if isinstance(value, torch.Tensor)]))
        outputs = Arena.create(reference.room())
        try:
            sets = [described(values, subgraph, inputs)]
            inputs.seal()
            request = reference.request(outputs) | {"sets": sets, "input_bytes": inputs.size}
            self._unanswered = False
            if self._ask(request, (inputs.fd, outputs.fd)):
                self._ask({"op": "audit", "id": reference.name, "sets": [0]})
                self._ask({"op": "release", "ids": [reference.name]})
        finally:
            inputs.close()
            outputs.close()
        return not self._unanswered

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """Whether the worker did it. Raises what Worker.ask does."""
        assert self._worker is not None
        return "error" not in self._worker.ask(message, STEP_S, fds, self._wish).message

    def _wish(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a build's request: the object if the cache has it, else it is built from now on."""
        key = json.dumps(request, sort_keys=True)
        if key not in self._jobs:
            if len(self._jobs) == WISHES:
                raise RuntimeError(f"asks for more than {WISHES} builds")
            self._jobs[key] = self._means.builders.submit(builds.answer, request)
        try:
            return self._jobs[key].result(_CACHED_S)
        except TimeoutError:
            self._unanswered = True
            return {"failed": "not built yet"}


def settle(cores: list[int]) -> None:
    """This thread, and the compilers that it starts, keep to `cores`."""
    os.sched_setaffinity(0, cores)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    torch.set_num_threads(1)
