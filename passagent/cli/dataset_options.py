"""Arguments and options of tasks that are made and checked, and of data sets for trainers."""

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


class By(enum.StrEnum):
    """What an example of a data set is."""

    episode = "episode"
    step = "step"


class FormatName(enum.StrEnum):
    """The forms of docs/formats.md."""

    passagent = "passagent"
    trl = "trl"
    openai = "openai"
    llamafactory = "llamafactory"
    axolotl = "axolotl"
    atif = "atif"


# Of the dataset pipeline
SamplesArgument = Annotated[
    list[str], argument("SAMPLES...", "Directories of full graphs in GraphNet's layout.")
]
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
Coverage = Annotated[
    bool,
    option(
        "--coverage",
        "Say what the expert lowers of each task for --device, and why not the rest; nothing is run.",
    ),
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

# Of data sets for trainers
WrittenArgument = Annotated[str, argument("DIR", "A directory that export or tasks build wrote.")]
Format = Annotated[FormatName, option("--format", "Who is to read it.")]
ExportOut = Annotated[str, option("--out", "The directory to write; a new one.", metavar="DIR")]
Keep = Annotated[
    str | None,
    option("--keep", "Which examples, such as 'as_score > 0.1 and steps <= 50'.", metavar="CONDITION"),
]
ByOption = Annotated[By, option("--by", "An example is a whole episode, or a step that gained.")]
BestOf = Annotated[int | None, option("--best-of", "At most so many of a task, the best.", min=1)]
PerSequence = Annotated[
    int | None,
    option("--per-sequence", "At most so many of an operator sequence, the best.", min=1),
]
Failures = Annotated[bool, option("--failures", "Write failed episodes, too: failures_*.")]
Pairs = Annotated[bool, option("--pairs", "Write pairs (better, worse): preferences.jsonl.")]
Parquet = Annotated[bool, option("--parquet", "Write tables as parquet, too.")]
Against = Annotated[
    list[str] | None,
    option(
        "--against",
        "Evaluation tasks, or a list of them, that nothing may be shared with.",
        metavar="TASKS",
    ),
]
Tokenizer = Annotated[
    str | None,
    option("--tokenizer", "A tokenizer.json that lengths are counted with.", metavar="FILE"),
]
ExportedRuns = Annotated[
    list[str] | None,
    option("--runs-dir", "Where runs are stored. Give it again for more.", show_default="runs"),
]
CameFrom = Annotated[
    list[str] | None,
    option("--runs-dir", "Where the runs are stored that it came from.", env="PASSAGENT_CHECK_RUNS_DIR"),
]
