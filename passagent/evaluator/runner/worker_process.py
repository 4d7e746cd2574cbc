"""The process that workers and recordings are forked from (sandbox/child.py): each takes milliseconds."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from passagent.plan.recorder_process import RECORDING
from passagent.sandbox.child import ForkServer, Work

WORKER = Work(f"{__name__}:work", needs=("passagent.evaluator.runner.worker",))
CAPTURES = f"{__name__}:capture_once"


def fork_server(device: str, threads: int) -> ForkServer:
    """Start the process and do not wait until it has imported torch. Raises InfrastructureError."""
    return ForkServer("the evaluator's fork server", WORKER, RECORDING, threads=threads, device=device)


def compilers_server(device: str, threads: int) -> ForkServer:
    """Start the process that workers of compilers are forked from, and do not wait until it has imported
    Dynamo and TorchInductor. Raises InfrastructureError.
    """
    return ForkServer(
        "the compilers' fork server", WORKER, _compiling(device), threads=threads, device=device
    )


def _compiling(device: str) -> Work:
    """A worker that compiles. A capture asks for the devices; who asked for a GPU cannot be forked."""
    captures = [CAPTURES] if device == "cpu" else []
    return replace(WORKER, needs=("passagent.tasks.capture", *captures, "torch._inductor.compile_fx"))


def capture_once() -> None:
    """Capture a small graph: Dynamo prepares much at its first use."""
    import torch

    from passagent.tasks.capture import capture

    class Tiny(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.silu(a) + 1.0,)

    capture(Tiny(), [torch.ones(2)])


def work(stream: socket.socket, scratch: Path, protections: dict[str, str]) -> None:
    """Serve as a worker until the stream is closed."""
    from passagent.evaluator.runner.worker import serve
    from passagent.sandbox.channel import Channel

    channel = Channel(stream)
    channel.send({"protections": protections})
    serve(channel, protections, scratch)
