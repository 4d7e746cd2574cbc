"""Options of commands that have no function in `passagent.api`."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from passagent.options import (
    Count,
    Device,
    DeviceOptions,
    Json,
    ModelOptions,
    Natural,
    OwnLibrary,
    PresetOptions,
    Price,
    Share,
    StoreOptions,
    levels,
    seconds,
)
from passagent.system.option_groups import Option

FILE = "FILE"


class ProfileOptions(DeviceOptions, PresetOptions, StoreOptions, total=False):
    """How a pass is profiled."""

    deep: Annotated[
        bool,
        Option("Read hardware counters with ncu, in a run of its own of up to 60 s (GPU).", default=False),
    ]


class BestOptions(StoreOptions, total=False):
    """How a run's best pass is written."""

    out: Annotated[str, Option("The directory to write.", metavar="DIR")]
    force: Annotated[bool, Option("Replace the pass files in it.", default=False)]
    measure: Annotated[
        bool,
        Option(
            "Measure again what is not the program that the run measured, and AS without each pass.",
            flags=("--measure/--no-measure",),
            default=True,
        ),
    ]
    standalone: Annotated[bool, Option("Write it so that it runs without passagent.", default=False)]
    format: Annotated[
        Literal["review", "kernelbench", "flashinfer"],
        Option(
            "A directory to review, a ModelNew for KernelBench, or a Solution for flashinfer-bench.",
            default="review",
        ),
    ]


class ImportOptions(TypedDict, total=False):
    """How another suite's problems become tasks."""

    out: Annotated[str, Option("The directory of the tasks; the same again goes on.", metavar="DIR")]
    level: Annotated[
        list[int], Option("Of kernelbench.", metavar="1,2,3", default=[1, 2, 3], shown="1,2,3", parse=levels)
    ]
    device: Device
    max_input: Annotated[
        Count | None,
        Option(
            "Cut inputs along their leading dimension to this size, or leave the call out.",
            metavar="MIB",
            shown="as large as they are",
        ),
    ]
    timeout: Annotated[Count, Option("Seconds for a problem.", default=600)]
    jobs: Annotated[Count, Option("Problems at a time.", flags=("--jobs", "-j"), default=1)]
    compute_ops: Annotated[
        Literal["allowed", "library-only"],
        Option("Whether a pass may replace matrix products and convolutions.", default="allowed"),
    ]
    most_refused: Annotated[Share, Option("Exit with 1 if a larger share is refused.", default=0.1)]


class WorkerOptions(TypedDict, total=False):
    """How a machine's devices are offered."""

    listen: Annotated[
        str, Option("Where it listens; with ssh://HOST, on this machine.", default="127.0.0.1:8700")
    ]
    device: Annotated[str, Option("cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all.", default="cpu")]
    token_file: Annotated[
        str,
        Option(
            "Who calls has to have this token; made if it is not there.",
            metavar=FILE,
            default="passagent.token",
        ),
    ]
    tls_cert: Annotated[str | None, Option("Serve https with this certificate.", metavar=FILE)]
    tls_key: Annotated[str | None, Option("The certificate's key.", metavar=FILE)]
    remote_command: Annotated[
        str, Option("With ssh://HOST: passagent there.", metavar="COMMAND", default="passagent")
    ]


class PageOptions(TypedDict, total=False):
    """How the page is served."""

    port: Annotated[Natural, Option("Where it answers; 0: any free one.", default=8640)]
    host: Annotated[
        str,
        Option(
            "The interface. Any but this machine's own asks for a token, which is printed.",
            default="127.0.0.1",
        ),
    ]
    token: Annotated[str | None, Option("Ask for this one.", shown="made anew each time")]
    allow_host: Annotated[
        list[str] | None, Option("Another name it is reached by, as behind a proxy.", metavar="NAME")
    ]
    control: Annotated[bool, Option("With buttons that stop live runs.", default=False)]
    library: OwnLibrary


class McpOptions(PresetOptions, StoreOptions, total=False):
    """How the evaluator is served to coding agents."""

    tasks: Annotated[list[str] | None, Option("Tasks beside the examples.", metavar="DIR")]
    http: Annotated[
        str | None,
        Option("Serve at this address; port 0: a free one.", metavar="HOST:PORT", shown="stdio"),
    ]
    device: Device
    trust_files: Annotated[
        bool,
        Option("Offer the tool extract, which runs models' files without a sandbox.", default=False),
    ]
    max_wait: Annotated[float, Option("Answer after at most so many seconds.", default=45.0, parse=seconds)]


class ModelsOptions(ModelOptions, PresetOptions, total=False):
    """Which models are listed."""

    price: Price
    check: Annotated[bool, Option("Ask each for one tiny tool call.", default=False)]


class ShowOptions(StoreOptions, total=False):
    """What is shown of a node, an episode or a run."""

    why: Annotated[
        bool, Option("How the node came to be: what each ancestor changed and gained.", default=False)
    ]
    prompt: Annotated[bool, Option("What the model was shown when the node's episode began.", default=False)]
    conversation: Annotated[bool, Option("The episode that made the node, by its messages.", default=False)]
    json: Json
