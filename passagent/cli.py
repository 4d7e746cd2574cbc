"""The command line. A command imports what it needs when it is called: `--help` must answer at once."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from passagent import __version__
from passagent.commands.expert import app as expert_app
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
app.add_typer(expert_app, name="expert")


class Dispatch(enum.StrEnum):
    """How the rewritten graph is called."""

    direct = "direct"
    dynamo = "dynamo"


class Compiler(enum.StrEnum):
    """What a benchmark measures."""

    eager = "eager"
    expert = "expert"
    inductor = "inductor"
    pass_dir = "pass_dir"
    run = "run"


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
    str | None,
    typer.Option(
        envvar="PASSAGENT_DEVICE", help="cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all.", show_default="cpu"
    ),
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
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", envvar="PASSAGENT_MAX_COST", help="Spend at most this, USD.")
]
MaxEvals = Annotated[
    int | None,
    typer.Option("--max-evals", envvar="PASSAGENT_MAX_EVALS", help="Evaluate at most this many candidates."),
]
PriceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        envvar="PASSAGENT_PRICE",
        metavar="MODEL=IN,OUT",
        help="A model's price, USD per million tokens: input, output[, cached[, cache write]].",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        envvar="PASSAGENT_MODEL",
        help="expert, openai/NAME, anthropic/NAME or replay:FILE; several with =WEIGHT share the work.",
        show_default="expert",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", envvar="PASSAGENT_BASE_URL", help="A compatible model server's address."),
]
TargetAs = Annotated[
    float | None,
    typer.Option("--target-as", envvar="PASSAGENT_TARGET_AS", help="Stop when a correct pass has this AS."),
]
MaxStagnation = Annotated[
    int | None,
    typer.Option(
        "--max-stagnation",
        envvar="PASSAGENT_MAX_STAGNATION",
        help="Stop after so many episodes of the run without a gain.",
    ),
]
Until = Annotated[
    float | None,
    typer.Option(
        "--until",
        envvar="PASSAGENT_UNTIL",
        metavar="SHARE",
        help="Stop when an hour more is expected to gain less than this share of AS, such as 0.02.",
    ),
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
    model: ModelOption = None,
    iters: Iters = None,
    islands: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_ISLANDS", help="Populations that search side by side.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(envvar="PASSAGENT_SEED", help="Seed of the search's choices.")
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    base_url: BaseUrl = None,
    runs_dir: RunsDir = "runs",
    config: ConfigOption = None,
    set_: SetOption = None,
    max_time: MaxTime = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_evals: MaxEvals = None,
    price: PriceOption = None,
    target_as: TargetAs = None,
    max_stagnation: MaxStagnation = None,
    until: Until = None,
    new: Annotated[
        bool, typer.Option("--new", envvar="PASSAGENT_NEW", help="Do not go on with an unfinished equal run.")
    ] = False,
    json: Json = False,
) -> None:
    """Search for passes for TASK. Ctrl-C stops cleanly; resume, or the same command again, goes on."""
    from passagent.commands import searching

    flags = {
        **_model_flags(model, price),
        "model.base_url": base_url,
        "search.max_cost": max_cost,
        "search.max_evaluations": max_evals,
        "search.iters": iters,
        "search.islands": islands,
        "search.seed": seed,
        "search.max_time_s": max_time,
        "search.max_tokens": max_tokens,
        "search.target_as": target_as,
        "search.max_stagnation": max_stagnation,
        "search.until": until,
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
    max_cost: MaxCost = None,
    max_evals: MaxEvals = None,
    price: PriceOption = None,
    target_as: TargetAs = None,
    max_stagnation: MaxStagnation = None,
    until: Until = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Go on with RUN where it was left; --iters raises the number of episodes."""
    from passagent.commands import searching

    flags = {
        **_model_flags(None, price),
        "search.iters": iters,
        "search.max_time_s": max_time,
        "search.max_tokens": max_tokens,
        "search.max_cost": max_cost,
        "search.max_evaluations": max_evals,
        "search.target_as": target_as,
        "search.max_stagnation": max_stagnation,
        "search.until": until,
    }
    searching.resume(run, _settings(None, flags), runs_dir, json)


@app.command()
def models(
    model: ModelOption = None,
    base_url: BaseUrl = None,
    check: Annotated[
        bool,
        typer.Option("--check", envvar="PASSAGENT_CHECK", help="Ask each for one tiny tool call."),
    ] = False,
    price: PriceOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """List the configured models, their addresses, keys and prices; exit code 1 if one fails --check."""
    from passagent.commands import models as command

    flags = {**_model_flags(model, price), "model.base_url": base_url}
    command.models(config, _settings(set_, flags), check, json)


@app.command()
def runs(runs_dir: RunsDir = "runs", json: Json = False) -> None:
    """List the runs, the newest first."""
    from passagent.commands import looking

    looking.list_runs(runs_dir, json)


@app.command()
def show(
    run: RunArgument,
    episode: Annotated[
        int | None, typer.Argument(metavar="EPISODE", help="An episode's number: show its conversation.")
    ] = None,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Show RUN: its tree, its best pass, what each island did; or one EPISODE of it, message by message."""
    from passagent.commands import looking

    if episode is None:
        looking.show(run, runs_dir, json)
    else:
        looking.show_episode(run, episode, runs_dir, json)


@app.command()
def prompt(
    run: RunArgument,
    node: Annotated[int, typer.Argument(metavar="NODE", help="A node's number.")],
    next_: Annotated[
        bool,
        typer.Option("--next", envvar="PASSAGENT_NEXT", help="As if an episode started from NODE now."),
    ] = False,
    runs_dir: RunsDir = "runs",
    json: Json = False,
) -> None:
    """Print what a model was shown when the episode that made NODE began."""
    from passagent.commands import prompting

    prompting.prompt(run, node, runs_dir, next_, json)


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
    strict_passbench: Annotated[
        bool,
        typer.Option(
            "--strict-passbench",
            envvar="PASSAGENT_STRICT_PASSBENCH",
            help="Measure by the paper's protocol, for comparison with published tables.",
        ),
    ] = False,
    validator: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_VALIDATOR",
            metavar="MODEL",
            help="Ask this model, too, whether a right pass cheats: openai/NAME, anthropic/NAME.",
        ),
    ] = None,
    base_url: BaseUrl = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", envvar="PASSAGENT_FRESH", help="Measure, whatever the store knows of it."),
    ] = False,
    runs_dir: RunsDir = "runs",
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Judge a pass directory on TASK: integrity, matching, correctness, speed, AS.

    A pass that was measured before on this machine is answered from the store.
    """
    from passagent.commands import evaluating

    flags = {
        "evaluator.device": device,
        "evaluator.dispatch": dispatch.value if dispatch else None,
        "evaluator.protocol": "passbench" if strict_passbench else None,
        "validator.model": validator,
        "validator.base_url": base_url,
    }
    evaluating.evaluate(task, pass_dir, config, _settings(set_, flags), runs_dir, fresh, json)


@app.command()
def bench(
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASKS...", help="Tasks, directories of tasks, quoted globs, sample lists."),
    ],
    compiler: Annotated[
        list[Compiler] | None,
        typer.Option(
            envvar="PASSAGENT_COMPILER",
            help="eager (against itself), inductor, expert (its first pass), pass_dir, or run (a search on "
            "each task); repeatable.",
            show_default="eager and inductor",
        ),
    ] = None,
    device: Device = None,
    dispatch: DispatchOption = None,
    pass_dir: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_PASS_DIR",
            help="Of --compiler pass_dir: task NAME's passes are in DIR/NAME.",
            metavar="DIR",
            show_default="TASK/pass_dir",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_MODEL", help="Of --compiler run: the model.", show_default="expert"),
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option(
            envvar="PASSAGENT_ITERS",
            help="Of --compiler run: episodes on each task; of --compiler expert: search so long first.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_ROOT",
            help="What the paths in sample lists are relative to.",
            show_default="the list's directory, else the current one",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(envvar="PASSAGENT_OUT", help="Where results are kept.", show_default="runs/bench/NAME"),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", envvar="PASSAGENT_FRESH", help="Put the results in --out aside, measure anew."
        ),
    ] = False,
    plots: Annotated[
        str | None,
        typer.Option(
            envvar="PASSAGENT_PLOTS",
            metavar="DIR",
            help="Draw ES(t), S(t) and the speedups (needs passagent[report]).",
        ),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: Json = False,
    csv: Annotated[
        bool, typer.Option("--csv", envvar="PASSAGENT_CSV", help="The table as CSV on stdout.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", envvar="PASSAGENT_MARKDOWN", help="The table as Markdown on stdout.")
    ] = False,
) -> None:
    """Measure compilers and passes on many tasks: PassNet's table. The same command again goes on."""
    from passagent.commands import benching

    flags = {
        "model.name": model,
        "evaluator.device": device,
        "evaluator.dispatch": dispatch.value if dispatch else None,
    }
    benching.bench(
        benching.Request(
            tasks=tasks,
            compilers=[item.value for item in compiler or (Compiler.eager, Compiler.inductor)],
            preset=config,
            settings=_settings(set_, flags),
            iters=iters,
            pass_dirs=pass_dir,
            root=root,
            out=out,
            fresh=fresh,
            plots=plots,
            form=benching.form_of(json=json, csv=csv, markdown=markdown),
        )
    )


@tasks_app.command("check")
def tasks_check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A task or subgraph directory.")],
    device: Device = None,
    json: Json = False,
) -> None:
    """Say of each subgraph whether it is runnable, serialisable and analysable, and what is wrong where."""
    from passagent.commands import evaluating

    evaluating.check_tasks(path, device or "cpu", json)


def _model_flags(models: list[str] | None, prices: list[str] | None) -> dict[str, Any]:
    """The settings behind `--model` and `--price`."""
    found: dict[str, Any] = {}
    if models:
        from passagent.config import parse_models

        found |= parse_models(models)
    if prices:
        from passagent.models.prices import parse_price

        found["model.prices"] = dict(map(parse_price, prices))
    return found


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
