"""Where candidates run, and with what: prompts, tools and messages are rendered with a Target."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from passagent.evaluator.result import Candidate


@dataclass(frozen=True)
class Target:
    """What works on a device. Words are for people and models."""

    name: str
    """`cpu` or `cuda`."""
    kernels: tuple[str, ...]
    """Names of passagent.kernels that make a kernel here."""
    imports: tuple[str, ...]
    """Libraries for tensors and kernels that a pass has a use for here."""
    language: str
    """In what kernels are written, and by what."""
    foreign: tuple[str, ...]
    """Words that name what is of no use here: in a path, a heading or an operator's advice."""


CPU = Target(
    name="cpu",
    kernels=("cpp_kernel",),
    imports=("torch", "passagent.kernels"),
    language="C++ by passagent.kernels.cpp_kernel",
    foreign=("triton", "cuda", "nvidia", "amd", "gpu"),
)
CUDA = Target(
    name="cuda",
    kernels=("cuda_kernel", "triton_kernel"),
    imports=("torch", "triton", "triton.language", "passagent.kernels"),
    language="Triton, or CUDA C++ by passagent.kernels.cuda_kernel",
    foreign=("cpu", "cpp_kernel", "amd"),
)


def target_of(device: str) -> Target:
    """Of `cpu`, `cuda`, `cuda:1`, `cuda:0,cuda:1` or `cuda:all`."""
    return CPU if device.partition(":")[0] == "cpu" else CUDA


def uses_triton(candidate: Candidate) -> bool:
    """Whether a module of the candidate imports triton."""
    for name, text in candidate.files.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if any(module.split(".")[0] == "triton" for module in modules):
                return True
    return False
