"""The process in which static inspection runs: a candidate on stdin, its findings on stdout, as JSON.

It has no other module than passagent's own and Python's, so that it starts in some 60 ms, and it runs nothing
of the candidate. Text that takes more than limits.py gives ends this process and no other.
"""

from __future__ import annotations

import json
import resource
import sys

from passagent.evaluator.candidate import Candidate
from passagent.evaluator.guards import intake, static
from passagent.evaluator.limits import INSPECTION
from passagent.evaluator.target import target_of


def main() -> None:
    """Answer one request."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (INSPECTION.memory, INSPECTION.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (INSPECTION.cpu_s, INSPECTION.cpu_s + 1))  # SIGXCPU comes first
    request = json.load(sys.stdin)
    candidate = Candidate(request["files"])
    try:
        found = static.inspect(candidate, request["host_extensions"], target_of(request["device"]))
    except (MemoryError, RecursionError):
        found = [intake.too_large(candidate.files)]
    except Exception as error:  # the text's doing: refused once, and not taken for a fault of the machine
        message = f"cannot be inspected; write it more plainly ({type(error).__name__}: {str(error)[:300]})"
        found = [intake.Finding("unreadable", min(candidate.files), 1, message)]
    json.dump(found, sys.stdout)
