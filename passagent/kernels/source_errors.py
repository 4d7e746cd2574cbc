"""Errors of a kernel's source: it does not compile, or it asks for more than a kernel may."""

from passagent.errors import PassagentError


class KernelBuildError(PassagentError):
    """The source of a kernel does not compile; the message is the compiler's, with the source's own lines."""


class KernelRefused(PassagentError):
    """The source of a kernel asks for more than a kernel may: `rule` and `line` say what and where.

    `line` counts from the first line of the kernel's source; 1 where the built code shows no line.
    """

    def __init__(self, rule: str, line: int, message: str) -> None:
        super().__init__(message)
        self.rule, self.line = rule, line
