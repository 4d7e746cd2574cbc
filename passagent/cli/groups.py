"""Options of commands about data sets, and of those that have no function in `passagent.api`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Required

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from passagent.option_groups import Option
from passagent.options import (
    Against,
    Count,
    Device,
    DeviceOptions,
    Json,
    ModelOptions,
    Natural,
    PresetOptions,
    Price,
    Share,
    StoreOptions,
    seconds,
)


def levels(value: Any) -> Any:
    """`1,2,3` as numbers."""
    if not isinstance(value, str):
        return value
    if not all(word.isdigit() for word in value.split(",")):
        raise ValueError("write numbers, such as 1,2,3")
    return [int(word) for word in value.split(",")]


class ExportOptions(TypedDict, total=False):
    """Options of a data set for trainers."""

    format: Required[
        Annotated[
            Literal["passagent", "trl", "openai", "llamafactory", "axolotl", "atif"],
            Option("Who is to read it."),
        ]
    ]
    out: Required[Annotated[str | Path, Option("The directory to write; a new one.", metavar="DIR")]]
    keep: Annotated[
        str | None, Option("Which examples, such as 'as_score > 0.1 and steps <= 50'.", metavar="CONDITION")
    ]
    by: Annotated[Literal["episode", "step"], Option(default="episode")]
    """An example is a whole episode, or a step that gained."""
    best_of: Annotated[Count | None, Option("At most so many of a task, the best.")]
    per_sequence: Annotated[Count | None, Option("At most so many of an operator sequence, the best.")]
    failures: Annotated[bool, Option("Write failed episodes, too: failures_*.")]
    against: Against
    tokenizer: Annotated[str | None, Option(metavar="FILE")]
    """A tokenizer.json that lengths are counted with."""


class BuildOptions(TypedDict, total=False):
    """Options of the tasks that are made of full graphs."""

    out: Required[Annotated[str | Path, Option("The directory to write, or to go on with.", metavar="DIR")]]
    shapes: Annotated[int, Ge(1), Le(10), Option("Of each subgraph, the recorded one included.", default=10)]
    evaluation: Annotated[Natural, Option(default=200)]
    """Operator sequences of each kind for evaluation, at most a fifth."""
    backward: Annotated[bool, Option("Also what training computes: forward and backward graphs.")]
    device: Device
    parallel: Annotated[Count | None, Option("Processes at a time.", shown="one for each core")]
    limit: Annotated[Count, Option("Refuse what takes longer than this, s.", default=600)]


class ProfileOptions(DeviceOptions, PresetOptions, StoreOptions, total=False):
    """How a pass is profiled."""

    deep: Annotated[bool, Option("Read hardware counters with ncu, in a run of its own of up to 60 s (GPU).")]


class BestOptions(StoreOptions, total=False):
    """How a run's best pass is written."""

    out: Annotated[str, Option("The directory to write.", metavar="DIR")]
    force: Annotated[bool, Option("Replace the pass in it.")]
    standalone: Annotated[bool, Option("Write it so that it runs without passagent.")]
    format: Annotated[Literal["review", "pass", "kernelbench"], Option(default="review")]
    """A directory to review, files for --passes-dir, KernelBench's ModelNew."""


class ImportOptions(TypedDict, total=False):
    """How another suite's problems become tasks."""

    out: Annotated[str, Option("The directory of the tasks; the same again goes on.", metavar="DIR")]
    level: Annotated[
        list[int], Option("Of kernelbench.", metavar="1,2,3", default=[1, 2, 3], shown="1,2,3", parse=levels)
    ]
    device: Device
    max_input: Annotated[Count | None, Option(metavar="MIB", shown="as large as they are")]
    """Cut inputs along their leading dimension to this size."""
    timeout: Annotated[Count, Option("Seconds for a problem.", default=600)]
    jobs: Annotated[Count, Option("Problems at a time.", flags=("--jobs", "-j"), default=1)]
    compute_ops: Annotated[
        Literal["allowed", "library-only"],
        Option("Whether a pass may replace matrix products and convolutions.", default="allowed"),
    ]
    most_refused: Annotated[Share, Option("Exit with 1 if a larger share is refused.", default=0.1)]


class WorkerOptions(TypedDict, total=False):
    """How a machine's devices are offered."""

    listen: Annotated[str, Option("Where it listens.", default="127.0.0.1:8700")]
    device: Annotated[str, Option("cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all.", default="cpu")]
    token_file: Annotated[
        str,
        Option(
            "Who calls has to have this token; made if it is not there.",
            metavar="FILE",
            default="passagent.token",
        ),
    ]
    tls_cert: Annotated[str | None, Option("Serve https with this certificate.", metavar="FILE")]
    tls_key: Annotated[str | None, Option("The certificate's key.", metavar="FILE")]


class PageOptions(TypedDict, total=False):
    """How the page is served."""

    port: Annotated[Natural, Option("Where it answers; 0: any free one.", default=8640)]
    host: Annotated[str, Option(default="127.0.0.1")]
    """The interface. Any but this machine's own asks for a token, which is printed."""
    token: Annotated[str | None, Option("Ask for this one.", shown="made anew each time")]
    allow_host: Annotated[list[str] | None, Option(metavar="NAME")]
    """Another name it is reached by, as behind a proxy."""


class McpOptions(PresetOptions, StoreOptions, total=False):
    """How the evaluator is served to coding agents."""

    tasks: Annotated[list[str] | None, Option("Tasks beside the examples.", metavar="DIR")]
    http: Annotated[str | None, Option(metavar="HOST:PORT", shown="stdio")]
    """Serve at this address; port 0: a free one."""
    device: Device
    max_wait: Annotated[float, Option("Answer after at most so many seconds.", default=45.0, parse=seconds)]


class ModelsOptions(ModelOptions, PresetOptions, total=False):
    """Options of the list of models."""

    price: Price
    check: Annotated[bool, Option("Ask each for one tiny tool call.")]


class ShowOptions(StoreOptions, total=False):
    """Options of what is shown of a node, an episode or a run."""

    why: Annotated[bool, Option("How the node came to be: what each ancestor changed and gained.")]
    prompt: Annotated[bool, Option("What the model was shown when the node's episode began.")]
    conversation: Annotated[bool, Option("The episode that made the node, by its messages.")]
    json: Json
