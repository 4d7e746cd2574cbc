"""Parts that can be plugged in, each by a dotted path `pkg.mod:Name`: the Protocols, and the one loader.

    --model pkg.mod:MyModel                 Model
    search.policy: pkg.mod:MyPolicy         Policy
    search.stop: [pkg.mod:MyRule]           StopRule
    agent.tools: [..., pkg.mod:MyTool]      Tool
    evaluator.target: pkg.mod:MyTarget      Target

`examples/extend/` has one of each. Modules of the current directory are found, too.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from passagent.errors import UsageError, nearest

if TYPE_CHECKING:
    import random

    from passagent.agent.workspace import Workspace
    from passagent.config import Config, EvaluatorConfig, ModelConfig, SearchConfig
    from passagent.models.types import Message, Reply, ToolSpec
    from passagent.plan.model import Kernel
    from passagent.search.islands import IslandView
    from passagent.search.stop import Progress
    from passagent.store.nodes import Node

MODELS = "passagent.models"
"""Entry points of this group name models: `--model NAME` for a package's `NAME = "pkg.mod:MyModel"`."""
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Model(Protocol):
    """`--model`: made as `MyModel(config)`. Anything that answers a conversation."""

    def __init__(self, config: ModelConfig) -> None: ...

    @property
    def name(self) -> str:
        """The name that a person gave: `config.name`."""
        ...

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """The next assistant message (passagent/models/types.py). Raises PassagentError: UsageError for what
        a person must set right, InfrastructureError after the last retry."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class Policy(Protocol):
    """`search.policy`: made as `MyPolicy(config)` for each choice, so it keeps nothing."""

    def __init__(self, config: SearchConfig) -> None: ...

    @property
    def scope(self) -> str:
        """`islands`: a stagnating island gets elites of others; `alone`: each keeps to its own tree."""
        ...

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """The parent of an island's next episode; None: the task itself. `rng` is the episode's own."""
        ...


class StopRule(Protocol):
    """`search.stop`: made as `MyRule(config)` once a session."""

    def __init__(self, config: SearchConfig) -> None: ...

    def __call__(self, progress: Progress) -> str | None:
        """Why to stop now, or None (passagent/search/stop.py)."""
        ...


class Tool(Protocol):
    """`agent.tools`: made as `MyTool(workspace)` for each episode."""

    def __init__(self, workspace: Workspace) -> None: ...

    spec: ClassVar[ToolSpec]
    """The tool for the model; it belongs to the class, as a prompt is made before a workspace."""

    async def run(self, arguments: dict[str, Any], call_id: str) -> str:
        """The model's view of a call. Raises passagent.agent.workspace.ToolError for its mistakes.

        What it does to the workspace is not done again on resume.
        """
        ...


class Target(Protocol):
    """`evaluator.target`: made as `MyTarget(config)` once a process. In what kernels are written on a device.

    `passagent.evaluator.target` has the two that come with passagent, `Cpu` and `Cuda`, to derive from.
    """

    def __init__(self, config: EvaluatorConfig) -> None: ...

    @property
    def name(self) -> str:
        """`cpu` or `cuda`: the kind of device that it is for."""
        ...

    def prompt(self, part: str) -> str:
        """A part of the prompts: how `kernels` are written, what `costs` what, an `example` pass."""
        ...

    def admits(self, text: str) -> bool:
        """Tell whether a text (advice, a section of a document) names only what works here."""
        ...

    def refuses(self, kernel: Kernel) -> str | None:
        """Why a candidate that launches this kernel (passagent/plan/model.py) is refused; None: it is not."""
        ...


NEEDS = {
    "--model": ("complete", "close", "name"),
    "search.policy": ("select", "scope"),
    "search.stop": ("__call__",),
    "agent.tools": ("run", "spec"),
    "evaluator.target": ("prompt", "admits", "refuses", "name"),
}
"""Attributes that each must have, in its class; but `scope` and `name` may be made by `__init__`."""


def is_path(name: str) -> bool:
    """Tell whether `name` is written as `pkg.mod:Name`."""
    return _PATH.fullmatch(name) is not None


def load(path: str, what: str) -> Callable[..., Any]:
    """The class at `pkg.mod:Name`, for `what` of NEEDS. Raises UsageError that says which part failed."""
    place = f"{what} {path}"
    if not is_path(path):
        raise UsageError(f"{place}: write it as pkg.mod:Name, such as my_package.module:MyClass")
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:  # as `python -m` has it
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"{place}: {module_name} does not import: {error}") from error
        here = "install it, or start where it is"
        raise UsageError(f"{place}: there is no module '{error.name}'; {here}") from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise UsageError(f"{place}: {module_name} does not import: {type(error).__name__}: {text}") from error
    if not hasattr(module, name):
        names = [key for key in vars(module) if not key.startswith("_")]
        raise UsageError(f"{place}: {module_name} has no '{name}'{nearest(name, names)}")
    loaded: Callable[..., Any] = getattr(module, name)
    if not isinstance(loaded, type):
        raise UsageError(f"{place}: is not a class; {what} is made of one")
    _check(loaded, place, what, made_later=("scope", "name"))
    return loaded


def _check(part: object, place: str, what: str, made_later: Sequence[str] = ()) -> None:
    """Raise UsageError for the first attribute of NEEDS that is not there."""
    for attribute in NEEDS[what]:
        if attribute not in made_later and not hasattr(part, attribute):
            words = ", ".join(NEEDS[what])
            raise UsageError(f"{place}: has no '{attribute}'; it needs {words} (passagent/extend.py)")


def make(path: str, what: str, *arguments: Any) -> Any:
    """Make what is at a path. Raises UsageError where it is not what `what` needs, or cannot be made."""
    loaded = load(path, what)
    try:
        instance = loaded(*arguments)
    except UsageError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise UsageError(f"{what} {path}: cannot be made: {type(error).__name__}: {message}") from error
    _check(instance, f"{what} {path}", what)
    return instance


def model_path(name: str) -> str | None:
    """The dotted path that a model's name is, or that an installed package gives it; None if neither."""
    if is_path(name):
        return name
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=MODELS, name=name)), None)


def check(config: Config) -> None:
    """Raise UsageError for a path that does not load, before anything is stored."""
    if is_path(config.search.policy):
        make(config.search.policy, "search.policy", config.search)
    for path in config.search.stop:
        make(path, "search.stop", config.search)
    for name in config.agent.tools:
        if is_path(name):
            load(name, "agent.tools")
