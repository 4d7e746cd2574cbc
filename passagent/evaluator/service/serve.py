"""A referee as a process, or in this one: a request, an answer, as plain data.

As a process it takes a request a line on stdin and gives an answer a line on stdout; it ends with its parent.

The first answer says that it is ready, before any request. Before an answer there may be lines for people:
`{"note": TEXT}`. `{"next": REQUEST}` has no answer: it is begun beside the request before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError, MachineFault, PassagentError
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.devices import Device, find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner.worker_process import fork_server
from passagent.evaluator.service.device_owner import Lost, error_kind
from passagent.sandbox.environment import worker_threads
from passagent.sandbox.faults import named

if TYPE_CHECKING:
    from passagent.config import EvaluatorConfig
    from passagent.evaluator.judging.referee import Referee


def main() -> None:
    """Serve until stdin closes. The arguments are the EvaluatorConfig and a list of cores, as JSON."""
    os.sched_setaffinity(0, json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a stray print cannot reach the parent's parser
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    referees: list[Referee] = []
    threading.Thread(target=_read, args=(requests, referees), daemon=True).start()
    writing, is_working = threading.Lock(), threading.Event()

    def say(line: dict[str, Any]) -> None:
        with writing:
            answers.write(json.dumps(line) + "\n")
            answers.flush()

    def tell(text: str) -> None:
        say({"note": text})

    def start() -> dict[str, Any]:
        config = json.loads(sys.argv[1])
        # It imports torch meanwhile.
        server = fork_server(config["device"], worker_threads(config["threads"]))

        import torch

        from passagent.config import EvaluatorConfig
        from passagent.evaluator.judging.referee import Referee

        torch.set_num_threads(1)  # the cores are the workers': threads of this process would wait for them
        device = find_device(config["device"])
        lease = DeviceLease(device, tell=tell, pid=os.getppid(), is_heard=is_working.is_set)
        referees.append(Referee(EvaluatorConfig.model_validate(config), server, lease))
        return {"ready": True}

    say(_outcome(start))
    while referees:
        request = requests.get()
        is_working.set()
        say(_outcome(partial(answer, referees[0], request)))
        is_working.clear()


def answer(referee: Referee, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request about `task`, in `result`. Raises as the referee does.

    It is the evaluation of `files` or a `compiler`, an `outline`, or a description of eager in `describe_s`.
    """
    from passagent.evaluator.result import Candidate
    from passagent.tasks.reader import load_task

    task = load_task(request["task"])
    if "describe_s" in request:
        return {"result": [asdict(graph) for graph in referee.describe(task, request["describe_s"])]}
    subject = Candidate(request["files"]) if "files" in request else request["compiler"]
    if request.get("outline"):
        outline = referee.outline(task, subject)
        return {"result": outline if isinstance(outline, list) else outline.model_dump()}
    evaluation = referee.evaluate(task, subject, request.get("bar"))
    return {"result": evaluation.model_dump() | {"plan_files": evaluation.plan_files}}


def _foresee(referee: Referee, request: dict[str, Any]) -> dict[str, Any]:
    from passagent.evaluator.result import Candidate
    from passagent.tasks.reader import load_task

    referee.foresee(load_task(request["task"]), Candidate(request["files"]))
    return {}


def _outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of the work, or its error as plain data."""
    try:
        with named("the evaluator"):
            return work()
    except PassagentError as error:
        return {"error": error_kind(error), "message": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": "infrastructure", "message": f"{type(error).__name__}: {error}"}


def _read(requests: queue.Queue[dict[str, Any]], referees: list[Referee]) -> None:
    with suppress(ConnectionResetError):  # it left an answer unread
        for line in sys.stdin:
            request = json.loads(line)
            if "next" not in request:
                requests.put(request)
            elif referees:
                _outcome(partial(_foresee, referees[0], request["next"]))  # what fails, its evaluation tells
    os._exit(0)  # the parent is gone; the fork server notices and kills the workers


class RefereeInside:
    """Makes its referee when it is first asked, and again after `stop`; a thread of its own asks it."""

    pid = None

    def __init__(self, device: Device, config: EvaluatorConfig, notify: Callable[[str], None]) -> None:
        """`notify` gets lines for people, on the event loop."""
        self.device = device
        self._config = config.model_copy(update={"device": device.name})
        self._tell = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="referee")
        self._referee: Referee | None = None

    async def ask(self, request: dict[str, Any]) -> Any:
        """Ask the referee, as DeviceOwner.ask says."""
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(self._tell, text)

        return await loop.run_in_executor(self._thread, self._ask, request, tell)

    async def foresee(self, request: dict[str, Any]) -> None:
        """Do nothing: its one thread begins nothing ahead."""

    def _ask(self, request: dict[str, Any], notify: Callable[[str], None]) -> Any:
        from passagent.evaluator.judging.referee import Referee

        is_new = self._referee is None
        try:
            with named("the evaluator"):
                if self._referee is None:
                    self._referee = Referee(self._config, lease=DeviceLease(self.device, tell=notify))
                return answer(self._referee, request)["result"]
        except MachineFault:
            raise
        except InfrastructureError as error:
            raise Lost(str(error), starting=is_new and self._referee is None) from error
        except PassagentError:
            raise
        except Exception as error:
            raise Lost(f"{type(error).__name__}: {error}") from error

    async def check(self, quick: bool = False) -> str | None:
        """Check the device, as DeviceOwner.check says."""
        return await health.check(self.device, quick)

    async def stop(self) -> None:
        """End its workers, when it has answered what it was asked."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _close(self) -> None:
        referee, self._referee = self._referee, None
        if referee is not None:
            referee.close()


if __name__ == "__main__":
    main()
