"""The kind of device that candidates run on: its part of the prompts, and which kernels count."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from passagent import extend
from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.candidate import Candidate
from passagent.tasks import resources

if TYPE_CHECKING:
    from passagent.extend import Target
    from passagent.plan.model import Kernel


class Cpu:
    """C++ by passagent.kernels.cpp_kernel, on the host's cores. See extend.Target."""

    name = "cpu"
    foreign = re.compile(r"triton|cuda|nvidia|\bamd\b|\bgpus?\b|\bwarps?\b|\btl\.", re.IGNORECASE)
    """Words of what does not work here."""

    def __init__(self, config: EvaluatorConfig) -> None:
        pass

    def prompt(self, part: str) -> str:
        """A part of the prompts, as extend.Target says."""
        place = f"targets/{self.name}/{part}.md"
        if part == "example":
            place = f"examples/{self.name}/FusedAddLayerNorm.py"
        return resources.find(f"prompts/{place}").read_text(encoding="utf-8").rstrip("\n")

    def admits(self, text: str) -> bool:
        """Tell whether a text names only what works here."""
        return self.foreign.search(text) is None

    def refuses(self, kernel: Kernel) -> str | None:
        """Refuse no kernel: what does not run here does not compile either."""
        return None


class Cuda(Cpu):
    """Triton, or CUDA C++ by passagent.kernels.cuda_kernel, on an NVIDIA GPU. See extend.Target."""

    name = "cuda"
    foreign = re.compile(r"cpp_kernel|\bcpus?\b|\bcpu_|\bomp\b|openmp|\bamd\b", re.IGNORECASE)


def target_of(config: EvaluatorConfig) -> Target:
    """The target of these settings: one's own (`evaluator.target`), or that of the device.

    Raises UsageError for one that does not load, and where it is for another device.
    """
    return _made(config.model_dump_json())


@functools.lru_cache(maxsize=8)
def _made(settings: str) -> Target:
    config = EvaluatorConfig.model_validate_json(settings)
    name = kind_of(config.device)
    if config.target is None:
        return (Cpu if name == "cpu" else Cuda)(config)
    place = f"evaluator.target {config.target}"
    target: Target = extend.make(config.target, "evaluator.target", config)
    if target.name != name:
        raise UsageError(f"{place}: is for {target.name}, and the device is {config.device}")
    return target


def kind_of(device: str) -> str:
    """`cpu` or `cuda`, of `cpu`, `cuda`, `cuda:1`, `cuda:0,cuda:1` or `cuda:all`."""
    return "cpu" if device == "cpu" else "cuda"


def uses_triton(candidate: Candidate) -> bool:
    """Tell whether a module of the candidate imports triton, or a kernel of its plans is Triton's."""
    if candidate.is_plans:
        return any(name.endswith(".ttir") for name in candidate.files)
    for name, text in candidate.files.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if any(module.split(".")[0] == "triton" for module in modules):
                return True
    return False
