"""Arguments and options of what serves others: workers, the page, coding agents."""

from __future__ import annotations

from typing import Annotated

from passagent.cli.options import argument, option

# Of a worker
SshArgument = Annotated[
    str | None, argument("[ssh://HOST]", "Start it on another machine, forwarded here.", show_default=False)
]
Listen = Annotated[str, option("--listen", "Where it listens; with ssh://HOST, on this machine.")]
WorkerDevice = Annotated[str, option("--device", "cpu, cuda, cuda:N, cuda:N,cuda:M or cuda:all.")]
WorkerToken = Annotated[
    str, option("--token-file", "Who calls has to have this token; made if it is not there.", metavar="FILE")
]
TlsCert = Annotated[str | None, option("--tls-cert", "Serve https with this certificate.", metavar="FILE")]
TlsKey = Annotated[str | None, option("--tls-key", "The certificate's key.", metavar="FILE")]
RemoteCommand = Annotated[
    str, option("--remote-command", "With ssh://HOST: passagent there.", metavar="COMMAND")
]

# Of the page
RunsDirArgument = Annotated[
    str, argument("[RUNS_DIR]", "Where runs are stored.", envvar="PASSAGENT_RUNS_DIR", show_default="runs")
]
Port = Annotated[int, option("--port", "Where it answers; 0: any free one.", min=0, max=65535)]
Host = Annotated[
    str, option("--host", "The interface. Any but this machine's own asks for a token, which is printed.")
]
Token = Annotated[str | None, option("--token", "Ask for this one.", show_default="made anew each time")]
AllowHost = Annotated[
    list[str] | None,
    option("--allow-host", "Another name it is reached by, as behind a proxy; repeatable.", metavar="NAME"),
]
Control = Annotated[bool, option("--control", "With buttons that stop live runs.")]
Html = Annotated[str | None, option("--html", "The page to write.", metavar="FILE")]
Pictures = Annotated[
    str | None,
    option(
        "--pictures",
        "Draw the best so far, the islands, the cost and the tree as SVG (needs passagent[report]).",
        metavar="DIR",
    ),
]
# Of coding agents
ServedTasks = Annotated[
    list[str] | None, option("--tasks", "Tasks beside the examples; repeatable.", metavar="DIR")
]
Http = Annotated[
    str | None,
    option("--http", "Serve at this address; port 0: a free one.", metavar="HOST:PORT", show_default="stdio"),
]
TrustFiles = Annotated[
    bool, option("--trust-files", "Offer the tool extract, which runs models' files without a sandbox.")
]
MaxWait = Annotated[float, option("--max-wait", "Answer after at most so many seconds.", min=0)]
