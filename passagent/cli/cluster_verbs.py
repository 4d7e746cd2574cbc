"""`passagent worker`."""

from __future__ import annotations

import typer

from passagent.cli import options as opt

commands = typer.Typer()


@commands.command()
def worker(
    target: opt.SshArgument = None,
    token_file: opt.WorkerToken = "passagent.token",
    listen: opt.Listen = "127.0.0.1:8700",
    device: opt.WorkerDevice = "cpu",
    tls_cert: opt.TlsCert = None,
    tls_key: opt.TlsKey = None,
    remote_command: opt.RemoteCommand = "passagent",
    json: opt.Json = False,
) -> None:
    """Evaluate for other machines, which name it by --pool http://HOST:PORT. SIGTERM lets it finish first."""
    from passagent.commands import offering

    request = offering.Request(target, listen, device, token_file, tls_cert, tls_key, remote_command)
    offering.offer(request, json)
