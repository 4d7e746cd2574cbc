"""The process that workers and recordings are forked from (sandbox/child.py): each takes milliseconds."""

from __future__ import annotations

import socket
from pathlib import Path

from passagent.plan.recorder_process import RECORDING
from passagent.sandbox.child import ForkServer, Work

WORKER = Work(f"{__name__}:work", needs=("passagent.evaluator.runner.worker",))
CAPTURES = f"{__name__}:capture_once"


def fork_server(device: str, threads: int) -> ForkServer:
    """Start the process and do not wait until it has imported torch. Raises InfrastructureError."""
    return ForkServer("the evaluator's fork server", WORKER, RECORDING, threads=threads, device=device)


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
