"""Arguments and options that several commands share, and the settings that they stand for."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer


class Dispatch(enum.StrEnum):
    """How the rewritten graph is called."""

    direct = "direct"
    dynamo = "dynamo"
    graph = "graph"
    python = "python"


TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task directory (graph_list.txt), one subgraph directory, or example:NAME (see tasks list).",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, a unique prefix, or 'last'.")]
NodeArgument = Annotated[int, typer.Argument(metavar="NODE", help="A node's number.")]
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
        help="direct: the rewritten graph itself; dynamo: behind torch.compile's guards; graph: without the "
        "host's share, captured in a CUDA graph; python: the pass's own Python, for trusted authors.",
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
        help="expert, openai/NAME, anthropic/NAME, replay:FILE, or your own, pkg.mod:MyModel; several with "
        "=WEIGHT share the work.",
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


def settings_of(pairs: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """`--set` pairs, and the options among `given` (a command's `locals()`), which win. Raises UsageError."""
    from passagent import settings
    from passagent.settings import parse_set

    options = {name: value for name, value in given.items() if name in settings.NAMES}
    return settings.settings_of(options, parse_set(pairs or []))
