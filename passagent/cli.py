"""The command line. A command imports what it needs when it is called: `--help` must answer at once."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from passagent import __version__
from passagent.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, PassagentError

app = typer.Typer(
    name="passagent",
    help="Search for correct, honest and fast PyTorch compiler passes with an LLM.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
tasks_app = typer.Typer(help="Look at tasks.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tasks_app, name="tasks")


class Dispatch(enum.StrEnum):
    """How the rewritten graph is called."""

    direct = "direct"
    dynamo = "dynamo"


TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="A task directory (graph_list.txt) or one subgraph directory.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a unique prefix, or 'last'.")]
RunsDir = Annotated[
    str, typer.Option("--runs-dir", envvar="PASSAGENT_RUNS_DIR", help="Where runs are stored.")
]
Json = Annotated[
    bool,
    typer.Option("--json", envvar="PASSAGENT_JSON", help="One JSON object on stdout, all else on stderr."),
]
Device = Annotated[
    str | None, typer.Option(envvar="PASSAGENT_DEVICE", help="cpu, cuda or cuda:N.", show_default="cpu")
]
DispatchOption = Annotated[
    Dispatch | None,
    typer.Option(
        envvar="PASSAGENT_DISPATCH",
        help="direct: the rewritten graph itself; dynamo: behind torch.compile's guards.",
        show_default="direct",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", envvar="PASSAGENT_CONFIG", help="A preset's name or a YAML file.", show_default="default"
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", envvar="PASSAGENT_SET", metavar="KEY=VALUE", help="A setting, such as search.elites=5."
    ),
]
Iters = Annotated[
    int | None, typer.Option("--iters", envvar="PASSAGENT_ITERS", help="Episodes over the life of the run.")
]
MaxTime = Annotated[
    float | None, typer.Option("--max-time", envvar="PASSAGENT_MAX_TIME", help="Stop after this time, s.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", envvar="PASSAGENT_MAX_TOKENS", help="Stop after this many tokens."),
]
TargetAs = Annotated[
    float | None,
    typer.Option("--target-as", envvar="PASSAGENT_TARGET_AS", help="Stop when a correct pass has this AS."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"passagent {__version__}")
        raise typer.Exit


@app.command()
def run(
    task: TaskArgument,
    model: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_MODEL",
            help="expert, openai/NAME, anthropic/NAME or replay:FILE.",
            show_default="expert",
        ),
    ] = None,
    iters: Iters = None,
    islands: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_ISLANDS", help="Populations that search side by side.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_SEED", help="Seed of the search's choices.")
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    base_url: Annotated[
        str | None, typer.Option(envvar="PASSAGENT_BASE_URL", help="A compatible model server's address.")
    ] = None,
    runs_dir: RunsDir = "runs",
    config: ConfigOption = None,
    set_: SetOption = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    target_as: TargetAs = None,
    new: Annotated[
        bool, typer.Option("--new", envvar="PASSAGENT_NEW", help="Do not go on with an unfinished equal run.")
    ] = False,
    json: Json = False,
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    from passagent.commands import searching

    flags = {
        "model.name": model,
        "model.base_url": base_url,
        "search.iters": iters,
        "search.islands": islands,
        "search.seed": seed,
        "search.max_time_s": max_time,
        "search.max_tokens": max_tokens,
        "search.target_as": target_as,
        "evaluator.device": device,
        "evaluator.dispatch": dispatch.value if dispatch else None,
    }
    searching.run(task, config, _settings(set_, flags), runs_dir, json, new)


@app.command()
def resume(
    run: RunArgument,
    iters: Iters = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    target_as: TargetAs = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Go on with RUN where it was left; --iters raises the number of episodes."""
    from passagent.commands import searching

    flags = {
        "search.iters": iters,
        "search.max_time_s": max_time,
        "search.max_tokens": max_tokens,
        "search.target_as": target_as,
    }
    searching.resume(run, _settings(None, flags), runs_dir, json)


@app.command()
def runs(runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """List the runs, the newest first."""
    from passagent.commands import looking

    looking.list_runs(runs_dir, json)


@app.command()
def show(run: RunArgument, runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """Show RUN: its tree, its best pass, what each island did."""
    from passagent.commands import looking

    looking.show(run, runs_dir, json)


@app.command()
def best(
    run: RunArgument,
    out: Annotated[str, typer.Option(envvar="PASSAGENT_OUT", help="The directory to write.")],
    force: Annotated[
        bool, typer.Option("--force", envvar="PASSAGENT_FORCE", help="Replace the pass files in it.")
    ] = False,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Write RUN's best pass to a directory, ready to be evaluated again."""
    from passagent.commands import looking

    looking.best(run, out, runs_dir, force, json)


@app.command("eval")
def evaluate(
    task: TaskArgument,
    pass_dir: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_PASS_DIR", help="The candidate.", show_default="TASK/pass_dir"),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Judge a pass directory on TASK: integrity, matching, correctness, speed, AS."""
    from passagent.commands import evaluating

    flags = {"evaluator.device": device, "evaluator.dispatch": dispatch.value if dispatch else None}
    evaluating.evaluate(task, pass_dir, config, _settings(set_, flags), json)


@tasks_app.command("check")
def tasks_check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A task or subgraph directory.")],
    device: Device = None,
    json: Json = False,
) -> None:
    """Say of each subgraph whether it is runnable, serialisable and analysable, and what is wrong where."""
    from passagent.commands import evaluating

    evaluating.check_tasks(path, device or "cpu", json)


def _settings(pairs: list[str] | None, flags: dict[str, Any]) -> dict[str, Any]:
    """`--set` pairs and the flags that were given, which win."""
    from passagent.config import parse_set

    return parse_set(pairs or []) | {key: value for key, value in flags.items() if value is not None}


def main() -> None:
    """The console script."""
    guarded(lambda: app(standalone_mode=False))


def guarded(command: Callable[[], object]) -> None:
    """Run `command` and exit: the one place for every exit code and every error's one line."""
    try:
        code = command()
        sys.stdout.flush()
    except PassagentError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its end
        sys.exit(EXIT_FAILED)
    except Exception as error:
        # typer brings its own copy of click: a mistake on the command line is told by what it can do
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message.startswith("Usage:"):  # no command given
            print(message, file=sys.stderr)
            sys.exit(EXIT_USAGE)
        _fail(message, EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    print(f"passagent: {'' if code == EXIT_INTERRUPTED else 'error: '}{line}", file=sys.stderr)
    sys.exit(code)
