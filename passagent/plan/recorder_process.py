"""Recordings: each in a throw-away process (sandbox/child.py) that sees no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.sandbox.child import ForkServer, Work

RECORDING = Work(f"{__name__}:answer", needs=(f"{__name__}:prepare",), answers=True, sees_gpu=False)


def recording_process() -> ForkServer:
    """Start a process for any number of recordings; do not wait until it has imported torch."""
    return ForkServer("the recording process", RECORDING)


def prepare() -> None:
    """Import what a recording needs, and do once what each would do: torch's own caches fill."""
    import torch
    import torch.fx.experimental.symbolic_shapes
    from torch._subclasses.fake_tensor import FakeTensorMode

    import passagent.plan.recording  # noqa: F401

    with FakeTensorMode():
        torch.empty(2, 3).transpose(0, 1).contiguous().clone()


def answer(request: bytes, scratch: Path) -> bytes:
    """Record what a request (messages.py) holds, and answer with plain data."""
    import torch

    from passagent.plan.messages import RecordingAnswer, Request
    from passagent.plan.recording import record_request

    torch.set_num_threads(1)
    recorded: Any = record_request(Request.model_validate_json(request), scratch / "candidate")
    return RecordingAnswer(answer=recorded).canonical()
