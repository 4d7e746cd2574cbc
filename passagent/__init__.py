"""passagent: search for correct, honest and fast PyTorch compiler passes with an LLM.

The names below are passagent/api.py's, imported when they are asked for: `import passagent` is instant.
"""

# ruff: noqa: F403, F405 (type checkers read the names from api.py, whose list is that below)

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.api import *

__version__ = "0.1.0"
__all__ = [
    "Bench", "Collection", "Evaluator", "InfrastructureError", "Node", "Nodes", "PassagentError", "Plan",
    "Result", "Run", "RunOptions", "TaskError", "UsageError", "apply", "bench", "build_dataset", "collect",
    "deploy", "explain", "export", "extract", "extract_regions", "fork", "load_task",
    "measure", "open_run", "optimize", "package", "resume", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A name of the API, when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from passagent import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
