"""The process of a referee: a request a line on stdin, an answer a line on stdout. It ends with its parent.

The first answer says that it is ready, before any request. Before an answer there may be lines for people:
`{"note": TEXT}`. A request to `foresee` has no answer: it is begun beside the request before it.
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
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from passagent.errors import PassagentError
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner.worker_process import fork_server
from passagent.evaluator.service.device_owner import Lost, failed
from passagent.sandbox.environment import worker_threads
from passagent.sandbox.faults import named

if TYPE_CHECKING:
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
        return {"result": "ready"}

    say(_outcome(start))
    while referees:
        request = requests.get()
        is_working.set()
        say(_outcome(partial(answer, referees[0], request)))
        is_working.clear()


def answer(referee: Referee, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request about `task`, in `result`. Raises as the referee does.

    It is the evaluation of `files` or a `compiler`, an `outline`, or a description of eager in `describe_s`;
    None for a candidate to `foresee`.
    """
    from passagent.evaluator.result import Candidate
    from passagent.tasks.reader import load_task

    task = load_task(request["task"])
    if "describe_s" in request:
        return {"result": [asdict(graph) for graph in referee.describe(task, request["describe_s"])]}
    subject = Candidate(request["files"]) if "files" in request else request["compiler"]
    if request.get("foresee"):
        referee.foresee(task, subject)
        return {"result": None}
    if request.get("outline"):
        outline = referee.outline(task, subject)
        return {"result": outline if isinstance(outline, list) else outline.model_dump()}
    evaluation = referee.evaluate(task, subject, request.get("bar"))
    return {"result": evaluation.model_dump() | {"plan_files": evaluation.plan_files}}


def _outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of the work, or its error as plain data."""
    try:
        with named("the evaluator"):
            return work()
    except PassagentError as error:
        return failed(error)
    except Exception as error:
        traceback.print_exc()
        return failed(Lost(f"{type(error).__name__}: {error}"))


def _read(requests: queue.Queue[dict[str, Any]], referees: list[Referee]) -> None:
    with suppress(ConnectionResetError):  # it left an answer unread
        for line in sys.stdin:
            request = json.loads(line)
            if not request.get("foresee"):
                requests.put(request)
            elif referees:
                _outcome(partial(answer, referees[0], request))  # what fails, its evaluation tells
    os._exit(0)  # the parent is gone; the fork server notices and kills the workers


if __name__ == "__main__":
    main()
