"""The command line. A command imports what it needs when it is called: `--help` must answer at once."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from passagent import __version__
from passagent.cli import data_verbs, deploy_verbs, look_verbs, pass_verbs, run_verbs, serve_verbs, task_verbs
from passagent.cli.parameters import VARIABLES
from passagent.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, PassagentError
from passagent.sandbox.faults import machine_fault

GROUPS = {
    "start": ("optimize", "run", "eval"),
    "search": ("resume", "fork", "stop"),
    "look": ("runs", "status", "show", "diff", "doctor", "view", "report"),
    "judge": ("check", "plan", "profile", "bench"),
    "deploy": ("extract", "package", "explain", "measure", "best", "library"),
    "data": ("collect", "export", "tasks"),
    "serve": ("worker", "mcp"),
    "more": ("models", "hints", "gc"),
}
"""The commands as `--help` shows them; what a first day needs comes first."""


class GroupedHelp(TyperGroup):
    """The root command: its help fits one screen of 80 columns and 40 lines."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command, by GROUPS, then the options' names in one line."""
        formatter.write("\n")
        for group, names in GROUPS.items():
            for place, name in enumerate(names):
                help = self.commands[name].get_short_help_str(formatter.width - 20)
                formatter.write(f"{'' if place else group:<8} {name:<10} {help}\n")
        options = ", ".join(option.opts[0] for option in self.get_params(ctx))
        formatter.write(f"\nOptions: {options}\n{VARIABLES}\n")


app = typer.Typer(
    name="passagent",
    cls=GroupedHelp,
    help="Search for correct, honest and fast PyTorch compiler passes with an LLM.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_VERBS = (run_verbs, look_verbs, pass_verbs, deploy_verbs, data_verbs, task_verbs, serve_verbs)
for verbs in _VERBS:
    app.add_typer(verbs.commands)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"passagent {__version__}")
        raise typer.Exit


def main() -> None:
    """The console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not of UTF-8
    guarded(lambda: app(standalone_mode=False))


def guarded(command: Callable[[], object]) -> None:
    """Run `command` and exit: the one place for every exit code and every error's one line."""
    try:
        code = command()
        print(end="", flush=True)
        if code == EXIT_INTERRUPTED:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except PassagentError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        sys.exit(EXIT_FAILED)
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _fail(f"{str(error.filename)[:60]}...: the path is too long", EXIT_USAGE)
        fault = machine_fault(error, place="stdout")
        if fault is None:
            raise
        _forget_output()
        _fail(str(fault), fault.exit_code)
    except Exception as error:
        # typer brings its own copy of click: a mistake on the command line is told by what it can do
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message.startswith("Usage:"):  # no command given
            print(message, file=sys.stderr)
            sys.exit(EXIT_USAGE)
        is_far = message.startswith("No such command") and "Did you mean" not in message
        _fail(f"{message} passagent --help names the commands" if is_far else message, EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _forget_output() -> None:
    """Send stdout to nowhere: Python would try once more to write it, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    print(f"passagent: {'' if code == EXIT_INTERRUPTED else 'error: '}{line}", file=sys.stderr)
    sys.exit(code)
