"""Functions that nothing leads to: neither inspected nor loaded, and never one without the other."""

from __future__ import annotations

import sys

import pytest

from passagent.evaluator.guards.static import inspect
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import MANIFEST, Candidate

PASS = """import time
import torch
from torch.testing import assert_close
{module}

def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def reference(x, y):
    return torch.relu(x + y)


def test(x, y):
    start = time.time()
    assert_close(fused(x, y), reference(x, y))
    return time.time() - start


def fused(x, y):
    {body}


def replacement_func():
    return fused
"""


def candidate(body: str = "return torch.empty_like(x)", module: str = "", **others: str) -> Candidate:
    files = {"P.py": PASS.format(body=body, module=module), MANIFEST: '["P"]'}
    return Candidate(files | {f"{name}.py": text for name, text in others.items()})


def test_what_nothing_names_is_neither_inspected_nor_loaded(tmp_path):
    module = 'if __name__ == "__main__":\n    test(1, 2)\nelse:\n    LIMIT = 4\n\n'
    made = candidate(module=f"{module}\nclass Model(torch.nn.Module):\n    pass\n")
    assert inspect(made) == []
    load_passes(made, tmp_path)
    names = set(vars(sys.modules["pass_dir.P"]))
    assert {"torch", "fused", "LIMIT"} <= names
    assert not {"reference", "test", "time", "assert_close", "Model"} & names


def test_lines_stay_as_they_are(tmp_path):
    made = candidate()
    load_passes(made, tmp_path)
    line = made.files["P.py"].splitlines()[sys.modules["pass_dir.P"].fused.__code__.co_firstlineno - 1]
    assert line.startswith("def fused")


def test_a_name_that_is_put_together_finds_nothing(tmp_path):
    """Even where inspection were deceived."""
    body = 'import helper\n    return getattr(helper, "refer" + "ence")'
    made = candidate(body, helper="import torch\n\n\ndef reference(x):\n    return torch.relu(x)\n")
    [loaded] = load_passes(made, tmp_path)
    with pytest.raises(AttributeError, match="reference"):
        loaded.replacement_func(None, None)


NAMED = {
    "called": ("return reference(x, y)", ""),
    "called by a function": ("return step(x, y)", "def step(x, y):\n    return reference(x, y)\n"),
    "in a table": ("return TABLE[0](x, y)", "def make():\n    return (reference,)\n\n\nTABLE = make()\n"),
    "in a lambda": ("return (lambda: reference)()(x, y)", ""),
    "a default": ("return step(x, y)", "def step(x, y, f=reference):\n    return f(x, y)\n"),
    "of a decorator": ("return step(1)", "@functools.lru_cache(reference)\ndef step(x):\n    pass\n"),
    "by getattr": ('return getattr(helper, "reference")(x, y)', "import helper\n"),
    "of a helper": ("return helper.reference(x, y)", "import helper\n"),
    "of a helper, renamed": ("return f(x, y)", "from helper import reference as f\n"),
    "of a helper, in the function": ("from helper import reference as f\n    return f(x, y)", ""),
    "of a helper, where an import fails": (
        "return f(x, y)",
        "try:\n    from helper import reference as f\nexcept ImportError:\n    f = None\n",
    ),
    "in a block": ("return f(x, y)", "if 1:\n    f = reference\nelse:\n    f = reference\n"),
    "in a class": ("return Table.f(x, y)", "class Table:\n    f = reference\n"),
    "of a class": ("return Table.f(x, y)", "class A:\n    f = reference\n\n\nclass Table(A):\n    pass\n"),
    "where no main block is": ("return x", 'if __name__ == "__main__" or True:\n    test(1, 2)\n'),
    "where no main block is either": ("return x", 'if __name__ != "__main__":\n    test(1, 2)\n'),
    "beside a main block": ("return x", 'if __name__ == "__main__":\n    pass\nelse:\n    test(1, 2)\n'),
    "what Python calls": ("return x", "def __getattr__(name):\n    return reference\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_anywhere_is_inspected(name):
    body, module = NAMED[name]
    helper = "import torch\n\n\ndef reference(x, y):\n    return torch.relu(x + y)\n"
    found = inspect(candidate(body, module, helper=helper))
    assert "`torch.relu`" in " ".join(violation.message for violation in found)


@pytest.mark.parametrize(
    "line", ["import socket", "from socket import socket", "import ctypes", "from time import *"]
)
def test_an_import_that_no_test_mentions_is_inspected(line):
    assert inspect(candidate(module=line))


def test_an_import_that_the_pass_uses_too_is_inspected():
    assert {"import", "host_name"} <= {
        violation.rule for violation in inspect(candidate("return time.time()"))
    }
