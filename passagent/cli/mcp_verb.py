"""`passagent mcp`."""

from __future__ import annotations

import typer

from passagent.cli import options as opt
from passagent.cli import server_options as serve

commands = typer.Typer()


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
    """Serve the evaluator to coding agents, over the Model Context Protocol on stdin and stdout."""
    from passagent.commands import serving_mcp

    settings = opt.settings_of(set_, {"device": device})
    serving_mcp.serve(tasks or [], http, config, settings, runs_dir, trust_files, max_wait)
