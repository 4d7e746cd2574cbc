"""Programs where Triton interprets: each runs in a fork of one process that has imported what they need.

Also a program, that process: a line on stdin is a program's text, as JSON. The line on stdout that answers
has what the program printed if it failed, else nothing.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from typing import IO

MOST_S = 300
"""A program that takes longer is killed, s."""


def interpreted(program: str) -> None:
    """Run a program where Triton interprets; it must end without an error."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(textwrap.dedent(program)) + "\n")
    server.stdin.flush()
    printed = json.loads(server.stdout.readline())
    assert printed == "", printed[-3000:]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process of this one; it ends when its stdin does."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, __file__]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def main() -> None:
    """Answer until stdin ends."""
    import torch

    torch.set_num_threads(1)  # a fork has none of the threads of OpenMP that its parent may have started
    import triton_interpreter
    from expert_cases import CASES, captured

    triton_interpreter.round_as_hardware_does()
    captured(*CASES["layer_norm"])  # imports what a first capture does
    for line in sys.stdin:
        print(json.dumps(_outcome(json.loads(line))), flush=True)


def _outcome(program: str) -> str:
    """What the program printed if it failed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run(program, output)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    return "" if status == 0 else f"{printed}\nexit status {status}"


def _run(program: str, output: IO[bytes]) -> None:
    """Run it in this process, which ends with it."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    signal.alarm(MOST_S)
    code = 1
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")  # Dynamo looks for globals there
    try:
        exec(compile(program, "<string>", "exec", dont_inherit=True), vars(main_module))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
