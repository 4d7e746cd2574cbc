"""The process that forks a throw-away process for each recording (sandbox/child.py); it sees no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.sandbox.child import ForkServer, serve


def recording_process() -> ForkServer:
    """Start the process, for any number of recordings; do not wait until it has imported torch."""
    return ForkServer(__spec__.name, "the recording process")


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_num_threads(1)
    with FakeTensorMode():  # once what every fork would do: torch's own caches fill
        torch.empty(2, 3).transpose(0, 1).contiguous().clone()
    serve(_answer, ["passagent.plan.recording", "torch.fx.experimental.symbolic_shapes"])


def _answer(request: bytes, scratch: Path) -> bytes:
    from passagent.plan.messages import Answer, Request
    from passagent.plan.recording import record

    answer: Any = record(Request.model_validate_json(request), scratch / "candidate")
    return Answer(answer=answer).canonical()


if __name__ == "__main__":
    main()
