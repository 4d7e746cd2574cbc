"""A target of your own: `--set evaluator.target=examples.extend.target:OneThread`."""

from passagent.evaluator.target import Cpu
from passagent.plan.model import Kernel

THREADS = "omp parallel"


class OneThread(Cpu):
    """C++ for a host that gives a model one thread: kernels that start others are refused."""

    def prompt(self, part: str) -> str:
        told = [line for line in super().prompt(part).splitlines() if THREADS not in line]
        return "\n".join(told + ["The host has one thread: start no others."] * (part == "kernels"))

    def admits(self, text: str) -> bool:
        return super().admits(text) and THREADS not in text

    def refuses(self, kernel: Kernel) -> str | None:
        return "it starts threads; use `omp simd` alone" if THREADS in kernel.text else None
