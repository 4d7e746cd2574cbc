"""Arguments and options of what makes tasks: the dataset pipeline, other suites, hashes."""

from __future__ import annotations

import enum
from typing import Annotated

from passagent.cli.options import argument, option


class Suite(enum.StrEnum):
    """Whose problems become tasks."""

    kernelbench = "kernelbench"
    opinfo = "opinfo"
    flashinfer = "flashinfer"
    gpumode = "gpumode"


class Computing(enum.StrEnum):
    """Whether a pass may replace matrix products and convolutions."""

    allowed = "allowed"
    library_only = "library-only"


class HashLevel(enum.StrEnum):
    """What a structural hash covers."""

    instance = "instance"
    structure = "structure"


# Of the dataset pipeline
SamplesArgument = Annotated[
    list[str], argument("SAMPLES...", "Directories of full graphs in GraphNet's layout.")
]
DatasetArgument = Annotated[str, argument("DIR", "What `dataset build` wrote.")]
FirstTasks = Annotated[str, argument("A", "A list of tasks or a directory.")]
OtherTasks = Annotated[str, argument("B", "A list of tasks or a directory.")]
ListedTask = Annotated[str, argument("TASK", "As a list names it, or a part of its name.")]
DatasetOut = Annotated[str, option("--out", "The directory to write, or to go on with.", metavar="DIR")]
Shapes = Annotated[int, option("--shapes", "Of each subgraph, the recorded one included.", min=1, max=10)]
EvaluationSequences = Annotated[
    int,
    option("--evaluation", "Operator sequences of each kind for evaluation, at most a fifth.", min=0),
]
AtATime = Annotated[
    int | None, option("--parallel", "Processes at a time.", min=1, show_default="one for each core")
]
Backward = Annotated[bool, option("--backward", "Also what training computes: forward and backward graphs.")]
LimitS = Annotated[int, option("--limit", "Refuse what takes more CPU time than this, s.", min=1)]
MostRefused = Annotated[
    float,
    option("--most-refused", "Exit with 1 if a larger share is refused.", min=0, max=1),
]
DatasetPlots = Annotated[
    str | None,
    option("--plots", "Draw operators, sizes and the funnel (needs passagent[report]).", metavar="DIR"),
]
Level = Annotated[
    HashLevel, option("--level", "instance: with sizes and dtypes; structure: for all of them.")
]

# Of other people's problems
SuiteArgument = Annotated[Suite, argument("SUITE", "Whose problems they are.")]
PlaceArgument = Annotated[
    str, argument("PATH", "The suite's directory or file; of opinfo operators, such as add,softmax, or all.")
]
Levels = Annotated[str, option("--level", "Of kernelbench.", metavar="1,2,3")]
ImportOut = Annotated[
    str, option("--out", "The directory of the tasks; the same again goes on.", metavar="DIR")
]
MaxInput = Annotated[
    int | None,
    option(
        "--max-input",
        "Cut inputs along their leading dimension to this size, or leave the call out.",
        metavar="MIB",
        min=1,
        show_default="as large as they are",
    ),
]
ProblemTime = Annotated[int, option("--timeout", "Seconds for a problem.", min=1)]
ComputeOps = Annotated[
    Computing, option("--compute-ops", "Whether a pass may replace matrix products and convolutions.")
]
ImportJobs = Annotated[int, option("--jobs", "Problems at a time.", "-j", min=1)]
