"""The process that workers are forked from (sandbox/child.py): milliseconds for each in place of seconds."""

from __future__ import annotations

import socket
from pathlib import Path

from passagent.sandbox.child import ForkServer, serve_forks

MODULE = "passagent.evaluator.runner.worker_process"


def fork_server(device: str, threads: int) -> ForkServer:
    """Start the process and do not wait until it has imported torch. Raises InfrastructureError."""
    return ForkServer(MODULE, "the evaluator's worker", threads, device)


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    serve_forks(_work, ["passagent.evaluator.runner.worker"])


def capture_once() -> None:
    """Capture a small graph: Dynamo prepares much at its first use."""
    import torch

    from passagent.tasks.capture import capture

    class Tiny(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.silu(a) + 1.0,)

    capture(Tiny(), [torch.ones(2)])


def _work(stream: socket.socket, scratch: Path, protections: dict[str, str]) -> None:
    from passagent.evaluator.runner.worker import serve
    from passagent.sandbox.channel import Channel

    channel = Channel(stream)
    channel.send({"protections": protections})
    serve(channel, protections, scratch)


if __name__ == "__main__":
    main()
