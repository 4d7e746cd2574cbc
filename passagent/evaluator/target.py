"""Where candidates run, and with what: prompts, tools and messages are rendered with a Target."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from passagent.evaluator.candidate import Candidate


@dataclass(frozen=True)
class Target:
    """What works on a device. Its words are for people and models."""

    name: str
    """`cpu` or `cuda`."""
    kernels: tuple[str, ...]
    """What passagent.kernels offers here."""
    imports: tuple[str, ...]
    """The libraries for tensors and kernels that are of use here."""
    language: str
    """In what kernels are written."""
    foreign: re.Pattern[str]
    """Words of what does not work here."""

    def admits(self, text: str) -> bool:
        """Whether a text (advice, a section of a document) names only what works here."""
        return self.foreign.search(text) is None


CPU = Target(
    name="cpu",
    kernels=("cpp_kernel",),
    imports=("torch", "passagent.kernels"),
    language="C++ by passagent.kernels.cpp_kernel",
    foreign=re.compile(r"triton|cuda|nvidia|\bamd\b|\bgpus?\b|\bwarps?\b|\btl\.", re.IGNORECASE),
)
CUDA = Target(
    name="cuda",
    kernels=("cuda_kernel", "triton_kernel"),
    imports=("torch", "triton", "triton.language", "passagent.kernels"),
    language="Triton, or CUDA C++ by passagent.kernels.cuda_kernel",
    foreign=re.compile(r"cpp_kernel|\bcpus?\b|\bcpu_|\bomp\b|openmp|\bamd\b", re.IGNORECASE),
)


def target_of(device: str) -> Target:
    """Of `cpu`, `cuda`, `cuda:1`, `cuda:0,cuda:1` or `cuda:all`."""
    return CPU if device == "cpu" else CUDA


def uses_triton(candidate: Candidate) -> bool:
    """Whether a module of the candidate imports triton, or a kernel of its plans is Triton's."""
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
