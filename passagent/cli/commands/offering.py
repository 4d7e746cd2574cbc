"""`passagent worker`: this machine's devices for other machines, or those of another one over ssh."""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from passagent.errors import InfrastructureError, UsageError

STDIN = "-"
_REMOTE_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to outgoing connections."""
_END_S = 10.0


@dataclass(frozen=True)
class Request:
    """What `passagent worker` was asked for."""

    target: str | None
    """`ssh://[USER@]HOST[:PORT]`; None: this machine."""
    listen: str
    device: str
    token_file: str
    certificate: str | None = None
    key: str | None = None
    remote_command: str = "passagent"
    """How passagent is called on the other machine."""


def offer(request: Request, as_json: bool) -> None:
    """Serve until a signal; SIGTERM finishes what is under way first. Raises PassagentError."""
    if (request.certificate is None) != (request.key is None):
        raise UsageError("--tls-cert and --tls-key: give both")
    if request.target is not None:
        _over_ssh(request)
        return
    try:
        from passagent.evaluator.fleet.worker_app import Door, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"worker needs {error.name}: pip install 'passagent[web]'") from error
    from passagent.evaluator.fleet.host import Host
    from passagent.evaluator.fleet.machine_facts import find_machine

    token = _token(request.token_file)
    facts = find_machine(request.device)
    names = [f"{one['name']} ({one['label']})" for one in facts["devices"]]

    def ready(address: str) -> None:
        found = {"address": address, "devices": names, "pid": os.getpid()}
        print(json.dumps(found) if as_json else f"{address} offers {', '.join(names)}", flush=True)

    door = Door(request.listen, token, request.certificate, request.key)
    serve(Host(facts), door, ready, until_stdin_ends=request.token_file == STDIN)


def _token(file: str) -> str:
    """The token; a file that is not there is made, for its owner's eyes. Raises UsageError."""
    if file == STDIN:
        return os.read(0, 200).decode(errors="replace").strip()
    from passagent.evaluator.fleet.http_fleet import token_in

    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--token-file {file}: {error.strerror}") from error
    return token_in(Path(file))


def _over_ssh(request: Request) -> None:
    """Start a worker on another machine, its port forwarded to `--listen` here, until ssh ends."""
    url = urlsplit(request.target or "")
    if url.scheme != "ssh" or not url.hostname or url.path not in ("", "/"):
        raise UsageError(f"{request.target}: write ssh://[USER@]HOST[:PORT]")
    token, port = _token(request.token_file), random.choice(_REMOTE_PORTS)
    there = (
        f"{request.remote_command} worker --listen 127.0.0.1:{port} --device {shlex.quote(request.device)}"
    )
    command = [
        *("ssh", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15"),
        *("-L", f"{request.listen}:127.0.0.1:{port}"),
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
            print(line.rstrip().replace(f"127.0.0.1:{port}", request.listen, 1), flush=True)
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
        raise InfrastructureError(
            f"{request.target}: the worker ended with exit code {code}; its words are above"
        )
