"""`passagent worker`, `mcp`, `models`, `hints` and `gc`."""

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
    """Evaluate for other machines. They name it by --pool http://HOST:PORT. SIGTERM lets it finish first."""
    from passagent.cli.commands import offering

    request = offering.Request(target, listen, device, token_file, tls_cert, tls_key, remote_command)
    offering.offer(request, json)


@commands.command()
def mcp(
    tasks: serve.ServedTasks = None,
    http: serve.Http = None,
    device: opt.Device = None,
    trust_files: serve.TrustFiles = False,
    max_wait: serve.MaxWait = 45.0,
    runs_dir: opt.RunsDir = "runs",
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Serve the evaluator to coding agents. Over the Model Context Protocol on stdin and stdout."""
    from passagent.cli.commands import serving_mcp

    settings = opt.settings_of(set_, {"device": device})
    serving_mcp.serve(tasks or [], http, config, settings, runs_dir, trust_files, max_wait)


@commands.command()
def models(
    model: opt.Model = None,
    base_url: opt.BaseUrl = None,
    check: opt.Check = False,
    price: opt.Price = None,
    config: opt.Config = None,
    set_: opt.Set = None,
    json: opt.Json = False,
) -> None:
    """List models with their addresses, keys and prices. Exit code 1 if one fails --check."""
    from passagent.cli.commands import model_check as command

    command.models(config, opt.settings_of(set_, locals()), check, json)


@commands.command()
def hints(runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """List curated and learned hints. With where they come from, and what showing learned ones gains."""
    from passagent.cli.commands import learned_hints

    learned_hints.list_hints(runs_dir, json)


@commands.command()
def gc(dry_run: opt.DryRun = False, runs_dir: opt.RunsDir = "runs", json: opt.Json = False) -> None:
    """Remove what nothing needs. Old directories, files of dead evaluators, old kernels."""
    from passagent.cli.commands import tidying

    tidying.gc(dry_run, runs_dir, json)
