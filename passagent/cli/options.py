"""Every argument and option of the commands, each declared once, and the settings that options stand for."""

from __future__ import annotations

import enum
import os
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

import typer


def option(name: str, help: str, *more: str, env: str | None = None, **settings: Any) -> Any:
    """`--max-time`, and `more` names of it; from the environment by PASSAGENT_MAX_TIME, or by `env`."""
    variable = name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, *more, envvar=env or f"PASSAGENT_{variable}", help=help, **settings)


limit = partial(option, show_default="no limit")


def argument(name: str, help: str, **settings: Any) -> Any:
    """An argument, as `--help` names it."""
    return typer.Argument(metavar=name, help=help, **settings)


class Dispatch(enum.StrEnum):
    """How the rewritten graph is called."""

    direct = "direct"
    dynamo = "dynamo"
    graph = "graph"
    python = "python"


class InternalForm(enum.StrEnum):
    """Of a kernel."""

    ttir = "ttir"


def _seconds(text: str) -> float:
    """`90`, `90s`, `30m` and `2h` in seconds."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write 90, 90s, 30m or 2h") from None


def _share_or_light(text: str) -> float | str:
    """`0.02`, or `sol`."""
    try:
        return text if text == "sol" else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no share of AS; write 0.02, or sol") from None


_A_RUN = "A run's id, a unique prefix, or 'last'."
_TASKS = "Tasks, directories of tasks, quoted globs, sample lists"

# What a command is about
TaskArgument = Annotated[
    str,
    argument(
        "TASK", "A task directory (graph_list.txt), one subgraph directory, or example:NAME (see tasks list)."
    ),
]
TasksArgument = Annotated[list[str], argument("TASKS...", f"{_TASKS}, example:NAME.")]
RunArgument = Annotated[str, argument("RUN", _A_RUN)]
LiveRunArgument = Annotated[str | None, argument("[RUN]", _A_RUN, show_default="live runs")]
RunsArgument = Annotated[list[str], argument("RUN...", "Ids of runs, unique prefixes, or 'last'.")]
FirstNodeArgument = Annotated[int, argument("A", "A node's number.")]
SecondNodeArgument = Annotated[int, argument("B", "Another node's.")]
PassDirArgument = Annotated[str, argument("PASS_DIR", "The candidate.")]

# Of most commands
RunsDir = Annotated[str, option("--runs-dir", "Where runs are stored.")]
Json = Annotated[bool, option("--json", "One JSON object on stdout, all else on stderr.")]
_CONFIG = "A preset's name or a YAML file."
Config = Annotated[str | None, option("--config", _CONFIG, show_default="default")]
CollectConfig = Annotated[str | None, option("--config", _CONFIG, show_default="teacher")]
Set = Annotated[list[str] | None, option("--set", "A setting, such as search.elites=5.", metavar="KEY=VALUE")]

# Of the evaluator
Device = Annotated[
    str | None, option("--device", "cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all.", show_default="cpu")
]
Pool = Annotated[
    str | None,
    option(
        "--pool",
        "Whose devices: local, workers (http://HOST:PORT,...), or ray[://ADDRESS].",
        show_default="local",
    ),
]
TokenFile = Annotated[
    str | None, option("--token-file", "Of --pool http://...: the workers' token.", metavar="FILE")
]
PlanDevice = Annotated[
    str | None,
    option(
        "--device",
        "cpu or cuda; no GPU is needed for either.",
        show_default="cuda for Triton and CUDA C++, else cpu",
    ),
]
DispatchOption = Annotated[
    Dispatch | None,
    option(
        "--dispatch",
        "direct: the rewritten graph itself; dynamo: behind torch.compile's guards; graph: without the "
        "host's share, captured in a CUDA graph; python: the pass's own Python, for trusted authors.",
        show_default="direct",
    ),
]
_CANDIDATE = "The candidate."
PassDir = Annotated[str | None, option("--pass-dir", _CANDIDATE, show_default="TASK/pass_dir")]
Deep = Annotated[
    bool, option("--deep", "Read hardware counters with ncu, in a run of its own of up to 60 s (GPU).")
]
StrictPassbench = Annotated[
    bool,
    option("--strict-passbench", "Measure by the paper's protocol, for comparison with published tables."),
]
Validator = Annotated[
    str | None,
    option(
        "--validator",
        "Ask this model, too, whether a right pass cheats: openai/NAME, anthropic/NAME.",
        metavar="MODEL",
    ),
]
Reward = Annotated[
    str | None,
    option("--reward", "Write the reward of PassEnv here: reward.txt and evaluation.json.", metavar="DIR"),
]
Fresh = Annotated[bool, option("--fresh", "Measure, whatever the store knows of it.")]
InternalFormOption = Annotated[
    InternalForm | None, option("--ir", "Also print what each Triton kernel became.")
]

# Of models
Model = Annotated[
    list[str] | None,
    option(
        "--model",
        "expert, openai/NAME, anthropic/NAME, replay:FILE, or your own, pkg.mod:MyModel; several with "
        "=WEIGHT share the work.",
        show_default="expert",
    ),
]
BaseUrl = Annotated[str | None, option("--base-url", "A server's address.", show_default="the provider's")]
Price = Annotated[
    list[str] | None,
    option(
        "--price",
        "A model's price, USD per million tokens: input, output[, cached[, cache write]].",
        metavar="MODEL=IN,OUT",
    ),
]
Check = Annotated[bool, option("--check", "Ask each for one tiny tool call.")]

# Of a search
Iters = Annotated[int | None, option("--iters", "Episodes of the run.", show_default="12, or the run's own")]
Islands = Annotated[int | None, option("--islands", "Populations side by side.", show_default="3")]
Seed = Annotated[int | None, option("--seed", "Seed of the search's choices.", show_default="0")]
SeedDir = Annotated[
    str | None,
    option(
        "--seed-dir", "A pass directory that the first episode of every island starts from.", metavar="DIR"
    ),
]
Deterministic = Annotated[
    bool | None,
    option(
        "--deterministic/--no-deterministic",
        "Let nothing that a prompt shows depend on how quick devices are.",
        show_default="no-deterministic",
    ),
]
MaxTime = Annotated[
    float | None,
    limit("--max-time", "End after this time: 90, 90s, 30m, 2h.", parser=_seconds, metavar="TIME"),
]
MaxTokens = Annotated[int | None, limit("--max-tokens", "Stop after this many tokens.")]
MaxCost = Annotated[float | None, limit("--max-cost", "Spend at most this, USD.")]
MaxEvals = Annotated[int | None, limit("--max-evals", "Evaluate at most this many candidates.")]
TargetAs = Annotated[float | None, option("--target-as", "Stop when a correct pass has this AS.")]
MaxStagnation = Annotated[
    int | None, option("--max-stagnation", "Stop after so many episodes of the run without a gain.")
]
Until = Annotated[
    str | None,
    option(
        "--until",
        "Stop when an hour more is expected to gain less than this share of AS, such as 0.02; or `sol`: when "
        "all islands are at the speed of light.",
        metavar="SHARE|sol",
        parser=_share_or_light,
    ),
]
New = Annotated[bool, option("--new", "Do not go on with an unfinished equal run.")]
Events = Annotated[
    str | None,
    option("--events", "Append what happens to this file, a JSON object a line.", metavar="FILE.jsonl"),
]
FromNode = Annotated[int, option("--from", "The node to start from.", metavar="NODE")]

# Of many tasks
Root = Annotated[
    str | None,
    option(
        "--root",
        "What the paths in sample lists are relative to.",
        show_default="the list's directory, else the current one",
    ),
]
Compiler = Annotated[
    list[str] | None,
    option(
        "--compiler",
        "eager (against itself), inductor, torch:BACKEND[:MODE], expert (its first pass), "
        "pass_dir, or run (a search on each task); repeatable.",
        show_default="eager and inductor; of a suite inductor, its CUDA-graph mode and expert",
    ),
]
BenchPassDir = Annotated[
    str | None,
    option(
        "--pass-dir",
        "Of --compiler pass_dir: task NAME's passes are in DIR/NAME.",
        metavar="DIR",
        show_default="TASK/pass_dir",
    ),
]
BenchModel = Annotated[str | None, option("--model", "Of --compiler run: the model.", show_default="expert")]
BenchIters = Annotated[
    int | None,
    option(
        "--iters",
        "Of --compiler run: episodes on each task; of --compiler expert: search so long first.",
        min=0,
        show_default="12 of run, 0 of expert",
    ),
]
BenchOut = Annotated[str | None, option("--out", "Where results are kept.", show_default="runs/bench/NAME")]
BenchFresh = Annotated[bool, option("--fresh", "Put the results in --out aside, measure anew.")]
HoldOut = Annotated[
    str | None,
    option(
        "--hold-out-shapes",
        "Hide so many of a task's subgraphs, such as 1/3, from the expert and searches: AS on both.",
        metavar="SHARE",
    ),
]
Plots = Annotated[
    str | None,
    option("--plots", "Draw ES(t), S(t) and the speedups (needs passagent[report]).", metavar="DIR"),
]
Markdown = Annotated[bool, option("--markdown", "The table as Markdown on stdout.")]
Trials = Annotated[int, option("--trials", "Conversations on each task.", min=1)]
MaxSteps = Annotated[
    int | None,
    option(
        "--max-steps",
        "Model calls, and evaluations, in a conversation at most.",
        min=1,
        show_default="50",
    ),
]
Parallel = Annotated[int, option("--parallel", "Conversations at a time, on the same devices.", min=1)]
Shuffle = Annotated[int | None, option("--shuffle", "Take the trials in a random order.", metavar="SEED")]
Shard = Annotated[
    str | None,
    option(
        "--shard", "Make the part I (from 0) of N parts: for N machines with a database each.", metavar="I/N"
    ),
]
FirstSeed = Annotated[
    int | None, option("--seed", "Seed of the first trial; the others' follow.", show_default="0")
]
Harbor = Annotated[str, option("--harbor", "Write Harbor tasks into DIR, a new one.", metavar="DIR")]
Wheel = Annotated[
    str | None,
    option(
        "--wheel",
        "Install this wheel of passagent in the images.",
        metavar="FILE",
        show_default="the released version",
    ),
]

# Of what is looked at, delivered or removed
Follow = Annotated[bool, option("--follow", "Print the events of RUN until it is at rest.", "-f")]
Lines = Annotated[int, option("--lines", "With --follow: past events to begin with.", "-n", min=0)]
ShownArgument = Annotated[
    str,
    argument(
        "WHAT",
        "A node's number; a run's id or 'last'; a task; a directory that export or tasks build wrote.",
    ),
]
ShownNumber = Annotated[
    int | None, argument("[N]", "An episode of the run (a seed's: 0, -1, ...), or a row of the export.")
]
Why = Annotated[bool, option("--why", "How the node came to be: what each ancestor changed and gained.")]
Prompt = Annotated[bool, option("--prompt", "What the model was shown when the node's episode began.")]
Conversation = Annotated[bool, option("--conversation", "The episode that made the node, by its messages.")]
AfterEpisodes = Annotated[bool, option("--after-episodes", "Finish the episodes under way first.")]
BestOut = Annotated[str, option("--out", "The directory to write.")]
Force = Annotated[bool, option("--force", "Replace the pass files in it.")]
Measure = Annotated[
    bool,
    option(
        "--measure/--no-measure",
        "Measure again what is not the program that the run measured, and AS without each pass.",
    ),
]
Standalone = Annotated[bool, option("--standalone", "Write it so that it runs without passagent.")]
Yes = Annotated[bool, option("--yes", "Do not ask.", "-y")]
DryRun = Annotated[bool, option("--dry-run", "Say what would go, remove nothing.")]


def share_of(text: str | None) -> float | None:
    """`1/3` or `0.3` as a number. Raises BadParameter."""
    if text is None:
        return None
    try:
        share = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        share = 0.0
    if not 0 < share < 1:
        raise typer.BadParameter(f"--hold-out-shapes {text}: write a share, such as 1/3")
    return share


def settings_of(pairs: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """`--set` pairs, and the options among `given` (a command's `locals()`), which win. Raises UsageError."""
    from passagent import settings
    from passagent.settings import parse_set

    options = {name: value for name, value in given.items() if name in settings.NAMES}
    if options.get("library") == os.environ.get("PASSAGENT_LIBRARY"):
        options["library"] = None  # of this machine, and no setting of the run: library_path reads it
    return settings.settings_of(options, parse_set(pairs or []))
