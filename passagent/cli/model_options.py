"""Arguments and options of the commands about your own model, and about the library of passes."""

from __future__ import annotations

from typing import Annotated

from passagent.cli.options import argument, option

FactoryArgument = Annotated[
    str,
    argument(
        "FILE.py:FACTORY",
        "Your own function: it returns `module, example_inputs`, or a module. It runs unsandboxed.",
    ),
]
SourcesArgument = Annotated[
    list[str],
    argument("SOURCES...", "Runs (the best pass of each), or directories that best wrote."),
]
PackageArgument = Annotated[str, argument("PACKAGE", "A package: its directory or its name.")]
Inputs = Annotated[
    str | None,
    option(
        "--inputs",
        "A function that returns the inputs.",
        metavar="FILE.py:FUNCTION",
        show_default="the factory's",
    ),
]
Dynamic = Annotated[bool, option("--dynamic", "Keep sizes of the inputs symbolic.")]
Regions = Annotated[
    bool,
    option("--regions", "Cut the graphs into what Inductor fuses, a task each, by their share of time."),
]
ExtractOut = Annotated[str, option("--out", "The directory to write; a new one.", metavar="DIR")]
PackageOut = Annotated[str, option("--out", "The package to write; a new one.", metavar="DIR")]
PackageTasks = Annotated[list[str] | None, option("--task", "Of each directory, in order.", metavar="TASK")]
Passes = Annotated[str, option("--passes", "A directory or a module.", metavar="PACKAGE")]
Mode = Annotated[
    list[str] | None,
    option(
        "--mode",
        "Of Inductor: default, reduce-overhead, max-autotune; repeatable.",
        show_default="default, on a GPU reduce-overhead too",
    ),
]
MeasureOut = Annotated[
    str | None, option("--out", "Write the package without passes that do not pay.", metavar="DIR")
]
OptimizeOut = Annotated[
    str, option("--out", "The package to write if it pays; a new one.", metavar="PACKAGE")
]
State = Annotated[
    str | None,
    option(
        "--state", "Where tasks, runs and the report are kept.", metavar="DIR", show_default="PACKAGE.state"
    ),
]
OptimizeIters = Annotated[int | None, option("--iters", "Episodes for each region.", show_default="4")]
Library = Annotated[
    str | None,
    option(
        "--library",
        "Passes that earlier runs found, to be used again: a file, or off.",
        metavar="FILE",
        show_default="library.db in the runs directory; of optimize and library, in $XDG_DATA_HOME/passagent",
    ),
]
Exclude = Annotated[
    list[str] | None,
    option(
        "--exclude",
        "Tasks of an evaluation: nothing of them is stored in the library or taken from it; repeatable.",
        metavar="TASKS",
    ),
]
KeptArgument = Annotated[str, argument("HASH", "The beginning of a region's hash, as list shows it.")]
KeptArguments = Annotated[
    list[str] | None, argument("[HASH...]", "Beginnings of regions' hashes; without any, all of this device.")
]
