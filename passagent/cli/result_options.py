"""Options of what `bench` tells and of the forms in which `best` writes a pass."""

from __future__ import annotations

import enum
from typing import Annotated

from passagent.cli.options import option


class BestFormat(enum.StrEnum):
    """In what form `best` writes a pass."""

    review = "review"
    kernelbench = "kernelbench"
    flashinfer = "flashinfer"


class BenchSuite(enum.StrEnum):
    """Whose own table `bench` can print."""

    kernelbench = "kernelbench"


SuiteTable = Annotated[
    BenchSuite | None, option("--suite", "Print this suite's table, too; TASKS were imported from it.")
]
Explain = Annotated[bool, option("--explain", "Say where each compiler loses: root causes, categories.")]
BenchShard = Annotated[
    str | None,
    option("--shard", "Measure every Nth task from the Ith (from 0) on: for N machines.", metavar="I/N"),
]
BestFormatOption = Annotated[
    BestFormat,
    option(
        "--format", "A directory to review, a ModelNew for KernelBench, or a Solution for flashinfer-bench."
    ),
]
