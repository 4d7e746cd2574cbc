"""What inspection takes a file, a module or an attribute for is what Python takes it for when it runs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tiny import candidate

from passagent.evaluator import passes
from passagent.evaluator.guards.scope import World, module_of
from passagent.evaluator.guards.static import inspect
from passagent.evaluator.result import Candidate

FILES = ["Fused.py", "__init__.py", "sub/__init__.py", "sub/inner.py", "sub/__init__/deep.py", "pkg/one.py"]


def rules_of(body: str, **others: str) -> set[str]:
    """The broken rules of a pass whose replacement is `body`, with other files beside it."""
    files = {name.replace("__SLASH__", "/") + ".py": text for name, text in others.items()}
    return {found.rule for found in inspect(candidate(body, setup="import helper", **files))}


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_the_module_that_the_loader_makes_of_it(file):
    sources = passes._Finder(Candidate(dict.fromkeys(FILES, f"HERE = {file!r}")), Path("/nowhere")).sources
    name = ".".join([passes.PACKAGE, *filter(None, [module_of(file)])])
    assert sources[name][0] == f"{passes.PACKAGE}/{file}"


@pytest.mark.parametrize(
    "files",
    [
        ["a.py", "a/__init__.py"],
        ["a/__init__.py", "a.py"],
        ["a.py", "a.__init__.py"],
        ["a.__init__.py", "a.py"],
        ["a/b.py", "a.b.py"],
        ["__init__.py", "__init__/__init__.py", "__init__.__init__.py"],
    ],
)
def test_two_files_of_one_module_are_refused(files):
    found = inspect(Candidate(dict.fromkeys(files, "X = 1\n")))
    assert {violation.rule for violation in found} == {"file_name"}


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("top.py", "from .inner import X"),
        ("sub/__init__.py", "from .inner import X"),
        ("sub/other.py", "from .inner import X"),
        ("sub/other.py", "from . import inner"),
        ("sub/deep/leaf.py", "from ..inner import X"),
        ("sub/deep/leaf.py", "from ...inner import X"),
        ("sub/deep/leaf.py", "from ... import inner"),
        ("__init__.py", "from .sub.inner import X"),
        ("sub/other.py", "from inner import X"),
        ("sub/other.py", "import sub.inner as X"),
    ],
)
def test_an_import_leads_where_python_goes(file, statement, tmp_path):
    files = {"inner.py": "X = 'inner'\n", "sub/inner.py": "X = 'sub.inner'\n"} | {file: f"{statement}\n"}
    world = World(files)
    read = world.files[module_of(file)]
    (name,) = read.imports
    resolved = world.resolve(read.imports[name])
    seen = resolved.removeprefix(f"{passes.PACKAGE}.").removesuffix(".X")

    passes._install(Candidate(files), tmp_path)
    module = importlib.import_module(".".join([passes.PACKAGE, *filter(None, [module_of(file)])]))
    value = getattr(module, name)
    assert seen == (value if isinstance(value, str) else value.X)


@pytest.mark.parametrize(
    "body",
    [
        "    return helper.TABLE.T.matmul(a)",
        "    return helper.kernel.fn.parse()",
        "    return helper.missing(a)",
        "    return helper.missing.matmul(a, b)",
        "    return len(helper.__name__)",
        "    import pass_dir\n    return pass_dir.nowhere.f(a)",
        "    import pass_dir\n    return len([pass_dir])",
        "    import pass_dir.folder.inner\n    return len([pass_dir.folder])",
    ],
)
def test_what_is_reached_through_a_helper_is_known(body):
    helper = "import torch\n\nTABLE = torch.tensor([1.0])\n\n\ndef kernel(a):\n    return a\n"
    assert rules_of(body, helper=helper, folder__SLASH__inner="X = 1\n")


@pytest.mark.parametrize(
    "body",
    [
        "    return a.view(helper.SIZES[0], helper.BLOCK.bit_length())",
        "    return helper.make(a, helper.Config.ROWS, helper.WIDE)",
        "    from pass_dir.folder import inner\n    return helper.make(a, inner.X, helper.FIRST)",
        "    from pass_dir import folder\n    return helper.make(a, folder.inner.X, helper.SECOND)",
    ],
)
def test_what_a_helper_defines_may_be_used(body):
    helper = (
        "import torch\n\nSIZES = (1, 2)\nBLOCK = 4\nFIRST, SECOND = 1, 2\n"
        "if BLOCK > 2:\n    WIDE = True\nelse:\n    WIDE = False\n\n\nclass Config:\n    ROWS = 1\n\n\n"
        "def make(a, rows, wide):\n    return torch.empty_like(a)\n"
    )
    assert rules_of(body, helper=helper, folder__SLASH__inner="X = 1\n") == set()


PACKAGES = {
    "def inner():\n    return 1\n\nUSED = inner\n": True,
    "class inner:\n    X = 1\n\nUSED = inner.X\n": True,
    "inner = 1\n": True,
    "for inner in (1, 2):\n    pass\n": True,
    "from .other import inner\n": True,
    "from .inner import inner, more\n": False,
    "from . import inner\n": False,
    "from .inner import other\n": True,
    "def f(x):\n    inner = x\n    return inner\n": False,
    "class Sizes:\n    inner = 1\n": False,
}
"""A package with a file `inner.py`, and whether a name of its own is that file's too."""


@pytest.mark.parametrize("text", PACKAGES)
def test_a_name_of_a_package_is_no_file_in_it(text):
    texts = {"__init__": text, "inner": "inner = other = more = 1\n", "other": "inner = other = 1\n"}
    others = {f"sub__SLASH__{name}": f"{given}\nHELD = 1\n" for name, given in texts.items()}
    refused = rules_of("return sub.HELD", **others, helper="from sub import HELD\n")
    assert ("module_name" in refused) is PACKAGES[text]
