"""A referee as a process: a request a line on stdin, an answer a line on stdout; it ends with its parent.

The first answer says that it is ready, before any request. Until there is one it prepares for the task that
it was started with. Before an answer there may be lines for people: `{"note": TEXT}`. `{"next": REQUEST}` has
no answer: it is begun beside the request before it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError, MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner.starting import start_zygote
from passagent.sandbox.environment import worker_threads
from passagent.system.faults import named

if TYPE_CHECKING:
    from passagent.evaluator.judging.referee import Referee

_KINDS = {
    TaskError: "task",
    UsageError: "usage",
    InfrastructureError: "infrastructure",
    MachineFault: "machine",
}


def main() -> None:
    """Serve until stdin closes.

    The arguments are the EvaluatorConfig and a list of cores, as JSON, and a task's path, if one is known.
    """
    os.sched_setaffinity(0, json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a stray print cannot reach the parent's parser
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    referees: list[Referee] = []
    threading.Thread(target=_read, args=(requests, referees), daemon=True).start()
    is_working = threading.Event()
    writing = threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with writing:
            answers.write(json.dumps(line) + "\n")
            answers.flush()

    def answer(work: Callable[[], dict[str, Any]]) -> None:
        say(_outcome(work))

    def tell(text: str) -> None:
        say({"note": text})

    def is_heard() -> bool:
        return is_working.is_set() or not requests.empty()

    def start() -> dict[str, Any]:
        config = json.loads(sys.argv[1])
        # It imports torch meanwhile.
        zygote = start_zygote(config["device"], worker_threads(config["threads"]))

        import torch

        from passagent.config import EvaluatorConfig
        from passagent.evaluator.judging.referee import Referee

        torch.set_num_threads(1)  # the cores are the workers': threads of this process would wait for them
        device = find_device(config["device"])
        lease = DeviceLease(device, tell=tell, pid=os.getppid(), is_heard=is_heard)
        referees.append(Referee(EvaluatorConfig.model_validate(config), zygote, lease))
        return {"ready": True}

    def evaluate() -> dict[str, Any]:
        from passagent.evaluator.service.asking import answer as answer_of

        request = requests.get()
        is_working.set()
        return {"result": answer_of(referees[0], request)}

    answer(start)
    if referees and len(sys.argv) > 3:
        # what fails, the first evaluation tells
        _outcome(partial(_prepare, referees[0], sys.argv[3], requests.empty))
    while referees:
        answer(evaluate)
        is_working.clear()


def _prepare(referee: Referee, task_path: str, is_idle: Callable[[], bool]) -> dict[str, Any]:
    """Prepare for the task while nothing is asked."""
    from passagent.tasks.reader import load_task

    referee.prepare(load_task(task_path), is_idle)
    return {}


def _foresee(referee: Referee, request: dict[str, Any]) -> dict[str, Any]:
    from passagent.evaluator.service.asking import foresee

    foresee(referee, request)
    return {}


def _outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of the work, or its error as plain data."""
    try:
        with named("the evaluator"):
            return work()
    except PassagentError as error:
        return {"error": _KINDS.get(type(error), "failed"), "message": str(error)}
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


if __name__ == "__main__":
    main()
