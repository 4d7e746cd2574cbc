"""Static inspection of a candidate, for whoever asks: the referee, the agent's tools, a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.guards import intake
from passagent.evaluator.guards.intake import Finding
from passagent.evaluator.limits import INSPECTION
from passagent.evaluator.result import Candidate, Violation

_ROOT = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path[:0] = sys.argv[1:]; import passagent.evaluator.guards.inspector as i; i.main()"
_ENDED_BY_THE_TEXT = {-signal.SIGXCPU, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}
"""Its processor time is used up, or the parser's stack is."""


def inspect(candidate: Candidate, host_extensions: bool = False, device: str = "cuda") -> list[Violation]:
    """Every broken integrity rule in the candidate's files, by file and line; [] for an honest candidate.

    Runs nothing of the candidate and needs no device. `host_extensions` permits ways to native host code, for
    a trusted author. `device`: messages say what to write instead for candidates that run there.
    What takes more than the limits of inspection breaks the rule `too_large`.
    Blocks for some 0.1 s; may be called by several threads. Raises InfrastructureError.
    """
    return check_files(candidate) or _violations(_inspected(candidate, host_extensions, device))


def inspected(candidate: Candidate, config: EvaluatorConfig) -> list[Violation]:
    """What `config` has inspected before anything runs: where plans are replayed, names and sizes only.

    Blocks as `inspect` does. Raises InfrastructureError.
    """
    if config.dispatch == "plan":
        return check_files(candidate)
    return inspect(candidate, config.host_extensions, config.device)


def check_files(candidate: Candidate) -> list[Violation]:
    """Of those rules the ones about the files' names and sizes."""
    return _violations(intake.check_files(candidate.files))


def _violations(found: list[Finding]) -> list[Violation]:
    return [
        Violation(rule=rule, file=file, line=line, message=message) for rule, file, line, message in found
    ]


def _inspected(candidate: Candidate, host_extensions: bool, device: str) -> list[Finding]:
    """What a process of its own finds (guards/inspector.py)."""
    request = json.dumps({"files": candidate.files, "host_extensions": host_extensions, "device": device})
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, _ROOT],
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            env=kept,
            timeout=INSPECTION.wall_s,
            check=False,
        )
    except OSError as error:
        raise InfrastructureError(f"static inspection does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        message = (
            f"static inspection did not end within {INSPECTION.wall_s:.0f} s; is the machine overloaded?"
        )
        raise InfrastructureError(message) from error
    if done.returncode in _ENDED_BY_THE_TEXT:
        return [intake.too_large(candidate.files)]
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise InfrastructureError(f"static inspection failed: {why[:300]}")
    return [Finding(*finding) for finding in json.loads(done.stdout)]
