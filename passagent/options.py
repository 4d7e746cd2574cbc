"""The options of every verb, each defined once.

The names of a group are flags and variables of the environment on the command line (`cli/parameters.py`),
keywords in `passagent.api`, and the properties of a JSON schema. A docstring below an option is its help.
One with a `key` sets a setting: help and default are the docstring and default of that field in config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from passagent.errors import UsageError
from passagent.option_groups import Option, options_of

if TYPE_CHECKING:
    from passagent.config import Config

SOL_MARGIN = 0.1
"""`until="sol"`: so near to the speed of light a run ends; `search.until_sol` for another share."""


def seconds(value: Any) -> Any:
    """`90`, `90s`, `30m` and `2h` in seconds."""
    if not isinstance(value, str):
        return value
    number, unit = (value[:-1], value[-1]) if value[-1:] in ("s", "m", "h") else (value, "s")
    try:
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        raise ValueError("write a time, such as 90, 90s, 30m or 2h") from None


def _share(value: Any) -> float:
    """`1/3` or `0.3` as a number between 0 and 1."""
    from fractions import Fraction

    try:
        share = float(Fraction(value))
    except (ValueError, ZeroDivisionError):
        share = 0.0
    if not 0 < share < 1:
        raise ValueError("write a share, such as 1/3")
    return share


def _share_or_light(value: Any) -> Any:
    """`0.02`, or `sol`."""
    try:
        return value if value == "sol" else float(value)
    except ValueError:
        raise ValueError("write a share of AS, such as 0.02, or sol") from None


def parse_set(pairs: Any) -> Any:
    """`["search.iters=4"]` to `{"search.iters": 4}`; values are YAML. Raises UsageError."""
    if isinstance(pairs, Mapping):
        return pairs
    import yaml

    result: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair}: write key=value, such as --set search.iters=20")
        try:
            result[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {pair}: the value is not valid YAML") from error
    return result


Several = list[str] | tuple[str, ...]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
RunsDir = Annotated[str | Path, Option("Where runs are stored.", default="runs")]
Json = Annotated[bool, Option("One JSON object on stdout, all else on stderr.")]
Library = Annotated[
    str | Path | None,
    Option(key="experience.library", metavar="FILE", shown="library.db in the runs directory", is_rare=True),
]
OwnLibrary = Annotated[
    str | None,
    Option(
        "Passes that earlier runs found, to be used again: a file, or off.",
        metavar="FILE",
        shown="$PASSAGENT_LIBRARY, else library.db in $XDG_DATA_HOME/passagent",
    ),
]
Against = Annotated[
    Several | None,
    Option("Evaluation tasks, or a list of them, that nothing may be shared with.", metavar="TASKS"),
]
Device = Annotated[str | None, Option(key="evaluator.device")]
Dispatch = Annotated[Literal["direct", "dynamo", "graph"] | None, Option(key="evaluator.dispatch")]
BaseUrl = Annotated[str | None, Option(key="model.base_url", shown="the provider's", is_rare=True)]
Price = Annotated[str | Several | None, Option(key="model.prices", metavar="MODEL=IN,OUT", is_rare=True)]
Root = Annotated[
    str | None,
    Option(
        "What the paths in sample lists are relative to.",
        shown="the list's directory, else the current one",
        is_rare=True,
    ),
]


class ModelOptions(TypedDict, total=False):
    """Options of the model that writes passes."""

    model: Annotated[str | Several | None, Option(key="model.name")]
    """expert, openai/NAME, anthropic/NAME, replay:FILE, or your own, pkg.mod:MyModel; several with =WEIGHT
    share the work."""
    base_url: BaseUrl


class SpendingOptions(TypedDict, total=False):
    """Limits to the cost of models."""

    max_tokens: Annotated[int | None, Option(key="search.max_tokens", shown="no limit")]
    max_cost: Annotated[float | None, Option(key="search.max_cost", shown="no limit")]
    price: Price


class LimitOptions(SpendingOptions, total=False):
    """Limits to cost and time."""

    max_time: Annotated[
        float | None, Option(key="search.max_time_s", metavar="TIME", shown="no limit", parse=seconds)
    ]


class StopOptions(LimitOptions, total=False):
    """When a search ends."""

    iters: Annotated[int | None, Option(key="search.iters")]
    target_as: Annotated[float | None, Option(key="search.target_as")]
    until: Annotated[
        float | Literal["sol"] | None, Option(key="search.until", metavar="SHARE|sol", parse=_share_or_light)
    ]
    """Stop when an hour more is expected to gain less than this share of AS, such as 0.02; or sol: when a
    pass is at the speed of light."""
    max_evals: Annotated[int | None, Option(key="search.max_evaluations", shown="no limit", is_rare=True)]
    max_stagnation: Annotated[int | None, Option(key="search.max_stagnation", is_rare=True)]


class DeviceOptions(TypedDict, total=False):
    """Where and how candidates are measured."""

    device: Device
    dispatch: Dispatch


class PoolOptions(TypedDict, total=False):
    """Whose devices are used."""

    pool: Annotated[str | None, Option(key="evaluator.pool", is_rare=True)]


class LibraryOptions(TypedDict, total=False):
    """Options of the passes that are kept across runs."""

    library: Library
    exclude: Annotated[Several | None, Option(key="experience.exclude", metavar="TASKS", is_rare=True)]


class SettingsOptions(TypedDict, total=False):
    """Any setting by its key."""

    settings: Annotated[
        Mapping[str, Any] | None, Option(metavar="KEY=VALUE", flags=("--set",), parse=parse_set)
    ]
    """A setting, such as search.elites=5."""


class PresetOptions(SettingsOptions, total=False):
    """Settings, and the preset below them."""

    config: Annotated[str | None, Option("A preset's name or a YAML file.", shown="default")]


class StoreOptions(TypedDict, total=False):
    """Where runs are."""

    runs_dir: RunsDir


class InstructOptions(TypedDict, total=False):
    """A person's words."""

    instruct: Annotated[str | None, Option(key="agent.instruct")]


class ForkOptions(
    ModelOptions, StopOptions, SettingsOptions, PoolOptions, LibraryOptions, InstructOptions, total=False
):
    """Options of a run that starts from a node of another one. What is not given is as in that one."""


class ResumeOptions(
    StopOptions, SettingsOptions, StoreOptions, PoolOptions, LibraryOptions, InstructOptions, total=False
):
    """Options of a run that goes on. What is not given is as it was."""


class RunOptions(
    ModelOptions, DeviceOptions, StopOptions, PresetOptions, StoreOptions,
    PoolOptions, LibraryOptions, total=False,
):  # fmt: skip
    """Options of a search."""

    islands: Annotated[int | None, Option(key="search.islands")]
    seed: Annotated[int | None, Option(key="search.seed", is_rare=True)]
    seed_dir: Annotated[str | None, Option(key="search.seed_dir", metavar="DIR", is_rare=True)]
    new: Annotated[bool, Option("Do not go on with an unfinished equal run.")]


class CollectOptions(
    ModelOptions, DeviceOptions, LimitOptions, SettingsOptions, StoreOptions, PoolOptions,
    LibraryOptions, total=False,
):  # fmt: skip
    """Options of a collection of conversations."""

    trials: Annotated[Count, Option("Conversations on each task.", default=2)]
    parallel: Annotated[Count, Option("Conversations at a time, on the same devices.", default=4)]
    max_steps: Annotated[Count | None, Option(shown="50")]
    """Model calls, and evaluations, in a conversation at most."""
    config: Annotated[str | None, Option("A preset's name or a YAML file.", shown="teacher")]
    seed: Annotated[int | None, Option(key="search.seed", is_rare=True)]
    """Seed of the first trial; the others' follow."""
    shard: Annotated[str | None, Option(metavar="I/N", is_rare=True)]
    """Make the part I (from 0) of N parts: for N machines with a database each."""
    root: Root


class BenchOptions(DeviceOptions, PresetOptions, PoolOptions, total=False):
    """Options of a benchmark."""

    compiler: Annotated[Several | None, Option(shown="eager and inductor")]
    """eager (against itself), inductor, torch:BACKEND[:MODE], expert (its first pass), pass_dir, or run (a
    search on each task)."""
    pass_dir: Annotated[
        str | None,
        Option(
            "Of --compiler pass_dir: task NAME's passes are in DIR/NAME.",
            metavar="DIR",
            shown="TASK/pass_dir",
        ),
    ]
    model: Annotated[str | None, Option("Of --compiler run: the model.", key="model.name")]
    iters: Annotated[
        Natural | None,
        Option(
            "Of --compiler run: episodes on each task; of --compiler expert: search so long first.",
            shown="12 of run, 0 of expert",
        ),
    ]
    out: Annotated[str | None, Option("Where results are kept.", shown="runs/bench/NAME")]
    fresh: Annotated[bool, Option("Put the results in --out aside, measure anew.")]
    hold_out_shapes: Annotated[float | None, Option(metavar="SHARE", parse=_share, is_rare=True)]
    """Hide so many of a task's subgraphs, such as 1/3, from the expert and searches: AS on both."""
    suite: Annotated[Literal["kernelbench"] | None, Option(is_rare=True)]
    """Print this suite's table, too; TASKS were imported from it."""
    shard: Annotated[str | None, Option(metavar="I/N", is_rare=True)]
    """Measure every Nth task from the Ith (from 0) on: for N machines."""
    library: Library
    root: Root


class EvaluatorOptions(DeviceOptions, PresetOptions, PoolOptions, total=False):
    """How candidates are judged."""


class EvalOptions(EvaluatorOptions, StoreOptions, total=False):
    """Options of an evaluation."""

    pass_dir: Annotated[str | None, Option("The candidate.", shown="TASK/pass_dir")]
    fresh: Annotated[bool, Option("Measure, whatever the store knows of it.")]
    reward: Annotated[str | None, Option(metavar="DIR")]
    """Write the reward of PassEnv here: reward.txt and evaluation.json."""


class OptimizeOptions(ModelOptions, SpendingOptions, PresetOptions, total=False):
    """Options of the optimisation of a model."""

    out: Annotated[str | None, Option(metavar="PACKAGE", shown="fast_NAME")]
    """The package to write if it pays; a new one. NAME is the factory's."""
    inputs: Annotated[str | None, Option(metavar="FILE.py:FUNCTION", shown="the factory's")]
    """A function that returns the inputs."""
    iters: Annotated[int | None, Option("Episodes for each region.", key="search.iters", shown="4")]
    max_time: Annotated[float | None, Option(metavar="TIME", shown="no limit", parse=seconds)]
    """End after this time: 90, 90s, 30m, 2h."""
    state: Annotated[str | None, Option(metavar="DIR", shown="PACKAGE.state")]
    """Where tasks, runs and the report are kept."""
    passes_dir: Annotated[str | None, Option(metavar="DIR", shown="none")]
    """Passes of your own, tried beside those that come with passagent."""
    freeze: Annotated[bool, Option()]
    """Make parameters constants in the compiled model: no other weights can be loaded."""
    library: OwnLibrary


def settings_of(group: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `settings` of `values` and those that its other options of `group` stand for, which win.

    Raises UsageError for a model or a price that is not written as one.
    """
    result = dict(values.get("settings") or {})
    for name, option in options_of(group).items():
        value = values.get(name)
        if option.key is None or value is None or value == []:
            continue
        if option.key == "model.name":
            result |= parse_models([value] if isinstance(value, str) else list(value))
        elif option.key == "model.prices":
            from passagent.models.prices import parse_price

            result[option.key] = dict(map(parse_price, [value] if isinstance(value, str) else value))
        elif (name, value) == ("until", "sol"):
            result.setdefault("search.until_sol", SOL_MARGIN)
        else:
            result[option.key] = str(value) if isinstance(value, Path) else value
    return result


def config_of(group: type[Any], values: Mapping[str, Any]) -> Config:
    """The settings that `values` of the options of `group` make, over their preset. Raises UsageError."""
    from passagent.config import load_config

    return load_config(values.get("config"), settings_of(group, values))


def parse_models(words: list[str]) -> dict[str, Any]:
    """The settings behind `--model NAME` or `--model A=0.7 --model B=0.3`. Raises UsageError."""
    if len(words) == 1 and _weighted(words[0])[1] is None:
        return {"model.name": words[0], "model.ensemble": []}
    members = []
    for word in words:
        name, weight = _weighted(word)
        if weight is not None and not weight > 0:
            raise UsageError(f"--model {word}: the weight must be over 0")
        members.append({"name": name, "weight": 1.0 if weight is None else weight})
    return {"model.ensemble": members}


def _weighted(word: str) -> tuple[str, float | None]:
    """`A=0.7` as name and weight; the weight is None where there is none."""
    name, separator, figure = word.rpartition("=")
    try:
        return (name, float(figure)) if separator and name else (word, None)
    except ValueError:
        return word, None
