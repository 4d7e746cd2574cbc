"""A referee as a process: a request a line on stdin, an answer a line on stdout; it ends with its parent."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, PassagentError, TaskError, UsageError
from passagent.evaluator.result import Candidate


def main() -> None:
    """Serve until stdin closes. The first argument is the EvaluatorConfig as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a stray print cannot reach the parent's parser
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()

    from passagent.evaluator.referee import Referee
    from passagent.tasks.reader import load_task

    referee: Referee | None = None
    while True:
        request = json.loads(requests.get())
        try:
            referee = referee or Referee(EvaluatorConfig.model_validate_json(sys.argv[1]))
            evaluation = referee.evaluate(load_task(request["task"]), Candidate(request["files"]))
            answer: dict[str, Any] = {"evaluation": evaluation.model_dump()}
        except PassagentError as error:
            kinds = {TaskError: "task", UsageError: "usage", InfrastructureError: "infrastructure"}
            answer = {"error": kinds.get(type(error), "failed"), "message": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": "infrastructure", "message": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the parent is gone; the zygote notices and kills the workers


if __name__ == "__main__":
    main()
