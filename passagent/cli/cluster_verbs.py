"""`passagent worker`."""

from __future__ import annotations

import typer

from passagent.cli import options as opt
from passagent.cli import server_options as serve

commands = typer.Typer()


@commands.command()
def worker(
    target: serve.SshArgument = None,
    token_file: serve.WorkerToken = "passagent.token",
    listen: serve.Listen = "127.0.0.1:8700",
    device: serve.WorkerDevice = "cpu",
    tls_cert: serve.TlsCert = None,
    tls_key: serve.TlsKey = None,
    remote_command: serve.RemoteCommand = "passagent",
    json: opt.Json = False,
) -> None:
    """Evaluate for other machines, which name it by --pool http://HOST:PORT. SIGTERM lets it finish first."""
    from passagent.commands import offering

    request = offering.Request(target, listen, device, token_file, tls_cert, tls_key, remote_command)
    offering.offer(request, json)
