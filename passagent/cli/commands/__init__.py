"""The commands' work. A module is imported when a command of it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.cli.commands import benching, collecting, delivering, deploying, running, task_commands

__all__ = ["benching", "collecting", "delivering", "deploying", "running", "task_commands"]


def __getattr__(name: str) -> Any:
    """Import a module of the commands. Raises AttributeError for another name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
