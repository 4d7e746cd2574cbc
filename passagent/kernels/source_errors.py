"""Errors of a kernel's source: it does not compile, or it asks for more than a kernel may."""

import re

from passagent.errors import PassagentError

NOT_TORCH = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h")
"""Beginnings of names of headers, instead of which there is advice."""
NO_TORCH = "a kernel has no torch; take pointers and sizes (const float* x, int64_t n)"


class KernelBuildError(PassagentError):
    """The source of a kernel does not compile; the message is the compiler's, with the source's own lines."""


class KernelRefused(PassagentError):
    """The source of a kernel asks for more than a kernel may: `rule` and `line` say what and where.

    `line` counts from the first line of the kernel's source; 1 where the built code shows no line.
    """

    def __init__(self, rule: str, line: int, message: str) -> None:
        super().__init__(message)
        self.rule, self.line = rule, line


def line_of_word(source: str, word: str) -> int:
    """The line of `source` where `word` (a regular expression) is first written; 1 if it is not."""
    match = re.search(rf"\b{word}\b", source) if word else None
    return 1 + source.count("\n", 0, match.start()) if match else 1
