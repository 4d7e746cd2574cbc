"""The errors a person may see. Each is one line: what is wrong, where, and what to do.

The exit codes are those of the command line: 0 done, 1 failed, 2 usage, 130 interrupted.
"""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class PassagentError(Exception):
    """Something failed that passagent can explain in one line."""

    exit_code = EXIT_FAILED


class UsageError(PassagentError):
    """The command, a path, a configuration key or a credential is not usable as given."""

    exit_code = EXIT_USAGE


class TaskError(PassagentError):
    """A task or subgraph on disk is broken; the message names the file."""


class InfrastructureError(PassagentError):
    """The machine failed (a lost worker, a lost GPU, a full disk): never charged to a candidate."""


class MachineFault(InfrastructureError):
    """A fault that the machine itself names: a full disk, no memory. Any other candidate would meet it."""


def nearest(word: str, names: list[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known word, else the list of known words."""
    return closest(word, names, 1) or f"; known: {', '.join(sorted(names))}"


def closest(word: str, names: list[str], count: int = 3) -> str:
    """`"; did you mean 'x' or 'y'?"` for up to `count` close words, the closest first; empty if none is."""
    import difflib

    close = difflib.get_close_matches(word, names, n=count)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
