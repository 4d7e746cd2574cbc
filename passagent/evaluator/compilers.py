"""Compilers that are judged in a candidate's place: eager itself, and all that torch.compile knows.

`inductor` is torch.compile's default; `torch:BACKEND` or `torch:BACKEND:MODE` any backend that is
registered with it, such as one that a package brings (GraphNet 3.1). Imports nothing that is slow.
"""

from __future__ import annotations

from typing import Any

from passagent.errors import UsageError, nearest

PREFIX = "torch:"


def is_compiled(subject: object) -> bool:
    """Tell whether torch.compile makes what is judged."""
    return isinstance(subject, str) and (subject == "inductor" or subject.startswith(PREFIX))


def arguments(compiler: str) -> dict[str, Any]:
    """The arguments of torch.compile for it: backend and mode."""
    if not compiler.startswith(PREFIX):
        return {}
    backend, _, mode = compiler.removeprefix(PREFIX).partition(":")
    return {"backend": backend} | ({"mode": mode} if mode else {})


def check(compiler: str) -> None:
    """Raise UsageError for a backend or a mode that torch.compile does not know. Imports torch."""
    options = arguments(compiler)
    if not options:
        return
    import torch

    backends = torch._dynamo.list_backends(exclude_tags=())
    backend, mode = options["backend"], options.get("mode")
    if backend not in backends:
        near = nearest(backend, backends)
        raise UsageError(f"--compiler {compiler}: torch.compile has no backend '{backend}'{near}")
    if mode is None:
        return
    if backend != "inductor":
        raise UsageError(f"--compiler {compiler}: only the backend inductor has modes")
    modes = list(torch._inductor.list_mode_options())
    if mode not in modes:
        raise UsageError(f"--compiler {compiler}: inductor has no mode '{mode}'{nearest(mode, modes)}")
