"""`python -m passagent.data.pipeline.unit_process THREADS`: computes units, each in a process forked for it.

Orders are JSON lines on stdin, answers JSON lines on stdout. A unit that takes too long, or all memory, ends
only its own process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from typing import Any

from passagent.data.pipeline.units import Refused
from passagent.errors import MachineFault
from passagent.sandbox import privileges
from passagent.system.faults import machine_fault
from passagent.system.machine_memory import memory_kills

_PATIENCE = 10
"""Seconds of waiting for one of CPU time: other programs may be at work."""


def main() -> None:
    """Serve until stdin closes."""
    privileges.prctl(privileges.SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # what a model or a compiler prints is no answer
    _import_once(int(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(_in_a_process(json.loads(line))), file=answers, flush=True)


def _import_once(threads: int) -> None:
    """What all units need, without its threads and processes."""
    import torch
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch.set_num_threads(threads)
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._inductor.scheduler")


def _in_a_process(order: dict[str, Any]) -> dict[str, Any]:
    """The answer of a unit: value, reason, detail, seconds, peak_mib; or `fault`."""
    kills, begun = memory_kills(), time.monotonic()
    with tempfile.TemporaryFile("w+") as result:
        pid = os.fork()
        if pid == 0:
            try:
                privileges.prctl(privileges.SET_PDEATHSIG, signal.SIGKILL)
                resource.setrlimit(resource.RLIMIT_CPU, (order["limit_s"], order["limit_s"] + 1))
                signal.alarm(_PATIENCE * order["limit_s"])  # for what waits and takes no CPU time
                json.dump(_computed(order), result)
                result.flush()
            finally:
                os._exit(0)
        _, status, usage = os.wait4(pid, 0)
        result.seek(0)
        text = result.read()
    seconds, peak_mib = round(time.monotonic() - begun, 3), usage.ru_maxrss >> 10
    with contextlib.suppress(json.JSONDecodeError):
        if text:
            return json.loads(text) | {"seconds": seconds, "peak_mib": peak_mib}
    ended = os.waitstatus_to_exitcode(status)
    reason, detail = "crash", f"its process ended with {ended}"
    if ended in (-signal.SIGALRM, -signal.SIGXCPU):
        reason, detail = "timeout", f"takes more than {order['limit_s']} s of CPU time"
    elif ended == -signal.SIGKILL and memory_kills() > kills:
        reason, detail = "memory", "needs more memory than there is"
    return {"value": None, "reason": reason, "detail": detail, "seconds": seconds, "peak_mib": peak_mib}


def _computed(order: dict[str, Any]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, _, name = order["function"].partition(":")
    try:
        value = getattr(importlib.import_module(module), name)(order["payload"])
        return {"value": value, "reason": "", "detail": ""}
    except Refused as error:
        return {"value": None, "reason": error.reason, "detail": error.detail}
    except MachineFault as error:
        return {"fault": str(error)}
    except Exception as error:
        if fault := machine_fault(error):
            return {"fault": str(fault)}
        lines = str(error).strip().splitlines()
        detail = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return {"value": None, "reason": "error", "detail": detail}


if __name__ == "__main__":
    main()
