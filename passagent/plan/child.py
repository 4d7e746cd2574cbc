"""The process that forks a throw-away process for each recording (sandbox/forking.py), and what one does."""

from __future__ import annotations

import gc
import importlib
import socket
import sys
from pathlib import Path
from typing import Any

from passagent.sandbox import sandbox
from passagent.sandbox.channel import Channel
from passagent.sandbox.forking import serve


def main() -> None:
    """Serve on the socket whose descriptor is the first argument. A fork message has `triton`, too."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    import torch

    for module in ("passagent.plan.recording", "torch.fx.experimental.symbolic_shapes"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    _warm_up()
    serve(channel, _answer, _load_triton)


def _warm_up() -> None:
    """Do once what every fork would do: torch's own caches fill."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        torch.empty(2, 3).transpose(0, 1).contiguous().clone()


def _load_triton(message: dict[str, Any]) -> None:
    if message["triton"] and "triton" not in sys.modules:
        importlib.import_module("passagent.plan.launches")
        sandbox.readable.cache_clear()
        sandbox.readable()
        gc.freeze()


def _answer(stream: socket.socket, scratch: Path) -> None:
    from passagent.plan.messages import Answer, Request
    from passagent.plan.recording import record

    with stream.makefile("rb") as source:
        request = Request.model_validate_json(source.read())
    answer: Any = record(request, scratch / "candidate")
    stream.sendall(Answer(answer=answer).canonical())


if __name__ == "__main__":
    main()
