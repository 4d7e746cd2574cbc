"""A fork server whose workers run a test's Python, as native code of a candidate could.

It is the compiler of a `Load` (python_request), or in a comment of a kernel's source (`hidden_in_a_kernel`).
"""

import base64
import ctypes
import io
import os
import re
from dataclasses import replace

import pytest

from passagent.evaluator.runner import worker, worker_process
from passagent.evaluator.runner.worker_messages import Load

HEAD = "python:"
PLACES = {"ctypes": ctypes, "io": io, "os": os}


def python_request(code):
    """A request on which the worker runs `code`."""
    return Load(plans=None, compiler=HEAD + code, device="cpu")


def hidden_in_a_kernel(code):
    """A comment of C++: the worker that loads the kernel's plan runs `code` first."""
    return f"// {HEAD}{base64.b64encode(code.encode()).decode()}.\n"


@pytest.fixture(scope="module")
def hostile():
    """Fork servers that are started meanwhile are hostile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            worker_process, "WORKER", replace(worker_process.WORKER, function="hostile_worker:work")
        )
        yield


def work(stream, scratch, protections):
    """Serve as a worker."""
    load = worker._load

    def obey(state, request):
        comments = re.findall(HEAD + r"([\w+/=]+)\.", (request.plans or {}).get("recording", ""))
        code = base64.b64decode(comments[0]).decode() if comments else None
        if request.compiler is not None:
            code = request.compiler.removeprefix(HEAD)
        if code is not None:
            exec(compile(code, "hostile", "exec"), dict(PLACES))
        if request.compiler is None:
            load(state, request)

    worker._load = obey
    worker_process.work(stream, scratch, protections)
