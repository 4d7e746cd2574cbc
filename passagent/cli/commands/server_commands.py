"""`passagent worker`, this machine's devices for other machines; `passagent mcp`, tools for coding agents."""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import subprocess
import sys
from urllib.parse import urlsplit

from passagent.cli.groups import McpOptions, WorkerOptions
from passagent.errors import InfrastructureError, UsageError
from passagent.options import config_of

STDIN = "-"
_REMOTE_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to outgoing connections."""
_END_S = 10.0


def offer(target: str | None, options: WorkerOptions, as_json: bool) -> None:
    """Serve until a signal; SIGTERM finishes what is under way first. Raises PassagentError.

    target: `ssh://[USER@]HOST[:PORT]`; None: this machine.
    """
    certificate, key = options["tls_cert"], options["tls_key"]
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key: give both")
    if target is not None:
        _over_ssh(target, options)
        return
    try:
        from passagent.evaluator.fleet.worker_app import Door, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"worker needs {error.name}: pip install 'passagent[web]'") from error
    from passagent.evaluator.fleet.host import Host
    from passagent.evaluator.fleet.machine_facts import find_machine

    token = _token(options["token_file"])
    facts = find_machine(options["device"])
    names = [f"{device['name']} ({device['label']})" for device in facts["devices"]]

    def ready(address: str) -> None:
        facts_text = {"address": address, "devices": names, "pid": os.getpid()}
        print(json.dumps(facts_text) if as_json else f"{address} offers {', '.join(names)}", flush=True)

    door = Door(options["listen"], token, certificate, key)
    serve(Host(facts), door, ready, until_stdin_ends=options["token_file"] == STDIN)


def _token(file: str) -> str:
    """The token; a file that is not there is made, for its owner's eyes. Raises UsageError."""
    if file == STDIN:
        return os.read(0, 200).decode(errors="replace").strip()
    from passagent.evaluator.fleet.http_fleet import token_in

    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token_file:
            token_file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--token-file {file}: {error.strerror}") from error
    return token_in(file)


def _over_ssh(target: str, options: WorkerOptions) -> None:
    """Start a worker on another machine, its port forwarded to `--listen` here, until ssh ends."""
    url = urlsplit(target)
    if url.scheme != "ssh" or not url.hostname or url.path not in ("", "/"):
        raise UsageError(f"{target}: write ssh://[USER@]HOST[:PORT]")
    token, port = _token(options["token_file"]), random.choice(_REMOTE_PORTS)
    device = shlex.quote(options["device"])
    there = f"{options['remote_command']} worker --listen 127.0.0.1:{port} --device {device}"
    command = [
        *("ssh", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15"),
        *("-L", f"{options['listen']}:127.0.0.1:{port}"),
        *(() if url.port is None else ("-p", str(url.port))),
        url.hostname if url.username is None else f"{url.username}@{url.hostname}",
        f"{there} --token-file {STDIN}",
    ]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise UsageError(f"ssh: {error.strerror}; install an ssh client") from error
    assert process.stdin is not None and process.stdout is not None
    try:
        print(token, file=process.stdin, flush=True)
        for line in process.stdout:
            print(line.rstrip().replace(f"127.0.0.1:{port}", options["listen"], 1), flush=True)
        code = process.wait()
    except BrokenPipeError:
        code = process.wait()
    finally:
        process.stdin.close()  # the worker there ends with it
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    if code:
        raise InfrastructureError(f"{target}: the worker ended with exit code {code}; its words are above")


def serve_mcp(options: McpOptions) -> None:
    """Serve on stdin and stdout, or at the address `http`, until the client leaves. Raises UsageError."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise UsageError("mcp is not installed; pip install 'passagent[mcp]'") from error
    from passagent.view.mcp.pass_server import build, serve_http, serve_stdio
    from passagent.view.mcp.served_tools import PassTools

    service = PassTools(
        options["tasks"] or [],
        config_of(McpOptions, options),
        str(options["runs_dir"]),
        trust_files=options["trust_files"],
    )
    service.max_wait_s = options["max_wait"]
    server = build(service)
    http = options["http"]
    if http is not None:
        serve_http(service, server, http)
        return
    if sys.stdin.isatty():
        print(
            "passagent mcp: a client's messages are read from stdin; --http serves an address",
            file=sys.stderr,
        )
    serve_stdio(service, server)
