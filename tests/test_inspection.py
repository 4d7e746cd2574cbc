"""Static inspection as a process of its own: what it may take, and what a candidate is told that takes more.

Each text here once hung the evaluator or ended it, without a verdict after three tries.
"""

from __future__ import annotations

import cProfile
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import candidate

from passagent.errors import InfrastructureError
from passagent.evaluator import inspection, limits
from passagent.evaluator.environment import import_path
from passagent.evaluator.guards import static, unused
from passagent.evaluator.limits import INSPECTION
from passagent.evaluator.result import Candidate
from passagent.kernels import cuda_source, lexer, ptx
from passagent.kernels.lexer import MAX_SOURCE

LEVELS = INSPECTION.sizes["levels of nesting"]
NESTED = {
    "minus": lambda n: f"x = {'-' * n}1\n",
    "not": lambda n: f"x = {'not ' * n}1\n",
    "sum": lambda n: f"x = 1{' + 1' * n}\n",
    "attributes": lambda n: f"x = y{'.z' * n}\n",
    "calls": lambda n: f"x = y{'()' * n}\n",
    "subscripts": lambda n: f"x = y{'[0]' * n}\n",
    "lambdas": lambda n: f"x = {'lambda: ' * n}1\n",
    "choices": lambda n: f"x = {'1 if y else ' * n}1\n",
    "elif": lambda n: f"def f(x):\n if x: pass\n{f' elif x: pass{chr(10)}' * n}",
    "a method": lambda n: f"class K:\n @staticmethod\n def f(x):\n  return {'-' * n}x\ny = K.f(1)\n",
}


def inspect(text: str) -> list[tuple[str, str]]:
    found = inspection.inspect(Candidate({"P.py": text}))
    return [(violation.rule, violation.file) for violation in found]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(NESTED)), st.integers(LEVELS + 1, 50_000))
def test_what_is_nested_too_deeply_is_refused_once(kind, depth):
    """It ended in MemoryError or RecursionError, or in a signal."""
    assert inspect(NESTED[kind](depth)) == [("too_large", "P.py")]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(NESTED)), st.integers(0, LEVELS))
def test_what_inspection_accepts_the_loader_can_read(kind, depth):
    files = {"P.py": NESTED[kind](depth)}
    if not {violation.rule for violation in static.inspect(Candidate(files))} & {"too_large"}:
        trees, too_large = unused.parsed(files)
        assert not too_large
        compile(trees["P.py"], "P.py", "exec")


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200), st.booleans())
def test_strings_that_double_by_name_are_not_written_out(doublings, dedented):
    """Inspection took twice as long with each of these names."""
    twice = "textwrap.dedent(S{0} + S{0})" if dedented else "S{0} + S{0}"
    names = "".join(f"S{n + 1} = {twice.format(n)}\n" for n in range(doublings))
    imports = "import textwrap\nfrom passagent.kernels import cpp_kernel\n"
    found = inspect(f"{imports}S0 = 'int a;  '\n{names}KERNEL = cpp_kernel(S{doublings}, 'f')\n")
    assert found == ([("too_large", "P.py")] if 8 * 2**doublings > MAX_SOURCE else [])


@pytest.mark.long
@pytest.mark.parametrize("levels", [19, 20])
def test_what_the_compiler_doubles_is_refused_once(levels):
    """A `finally` is compiled twice, and so is one in it: a worker that loaded the file took all memory."""
    tries = "".join(f"\n{' ' * n}try: f()\n{' ' * n}finally:" for n in range(1, levels + 1))
    assert inspect(f"def f():{tries} f()\nf\n") == [("too_large", "P.py")]


@pytest.mark.long
def test_what_takes_too_long_is_refused_once():
    text = "".join(f"def f{n}(x):\n    return x.view(-1), f{n + 1}\n" for n in range(20_000))
    assert len(text) < INSPECTION.sizes["bytes of files and names"]  # else nothing reads it
    assert inspect(f"{text}f0\n") == [("too_large", "P.py")]


@pytest.mark.parametrize(
    "files",
    [{"P.py": "#" * (2 << 20)}, {f"p{i}.py": "" for i in range(300)}, {"p" * (2 << 20): ""}],
    ids=["bytes", "files", "a name"],
)
def test_what_is_too_large_is_not_read(files):
    (violation,) = inspection.inspect(Candidate(files))
    assert (violation.rule, len(violation.file) <= 200) == ("too_large", True)


def test_an_integer_that_python_does_not_write_is_refused():
    """The message that shows it could not be made: ValueError."""
    text = f"KEPT = {{}}\ndef f(x):\n    KEPT[0x{'f' * 20_000}] += 1\nf\n"
    assert inspect(text) == [("too_large", "P.py")]


def test_violations_and_their_messages_are_bounded():
    long, most = "y" * 100_000, INSPECTION.sizes["characters of a message"]
    found = inspection.inspect(Candidate({"P.py": f"def f(x):\n    x.{long} = 1\n    x.{long}()\nf\n"}))
    assert [len(violation.message) <= most for violation in found] == [True, True]
    many = "".join(f"    x.a{n}()\n" for n in range(5000))
    found = inspection.inspect(Candidate({"P.py": f"def f(x):\n{many}f\n"}))
    assert len(found) == INSPECTION.sizes["violations"]


def test_several_threads_are_told_what_one_is_told():
    honest, other = candidate(), Candidate({"P.py": "import socket\nsocket\n", "Q.py": "\udc80"})
    with ThreadPoolExecutor(4) as beside:
        answers = list(beside.map(inspection.inspect, [honest, other] * 4))
    assert answers == [[], inspection.inspect(other)] * 4
    assert {violation.rule for violation in answers[1]} >= {"import"}


NO_TORCH = """
import sys
from passagent.evaluator import inspection
from passagent.evaluator.result import Candidate

text = "from passagent.kernels import cpp_kernel\\nX = cpp_kernel('#include <torch/torch.h>', 'f')"
print([violation.rule for violation in inspection.inspect(Candidate({"P.py": text}))], "torch" in sys.modules)
"""


def test_inspection_imports_no_torch():
    command, environment = [sys.executable, "-c", NO_TORCH], os.environ | import_path()
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "['cpp_include'] False\n"


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere"])
def test_a_machine_that_cannot_inspect_is_no_candidates_fault(program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(InfrastructureError, match="static inspection"):
        inspection.inspect(candidate())


HEAD = """import functools, torch, triton, triton.language as tl
from dataclasses import dataclass
from passagent.kernels import cpp_kernel
KEPT, A0 = {}, 1
"""
GROWING = {
    "functions": ("def f{0}(x):\n    y = x.view(-1)\n    return y, f{1}(x)\n", "    f{0}(x)\n"),
    "classes": (
        "@dataclass\nclass K{0}:\n    a{0}: int\n    def m(self):\n        return self.a{0}\n",
        "    k{0} = K{0}(1).m()\n",
    ),
    "objects": ("", "    k{0} = torch.finfo(x.dtype)\n    m{0} = k{0}.max\n"),
    "aliases": ("A{1} = A{0}\n", "    a{0} = A{0}\n"),
    "globals": (
        "G{0} = None\ndef g{0}():\n    global G{0}\n    if G{0} is None:\n        G{0} = 1\n", "    g{0}()\n"
    ),
    "kernels": ("@triton.jit\ndef k{0}(p):\n    tl.store(p, {0})\n", "    k{0}[(1,)](x)\n"),
    "kernels of classes": (
        "class C{0}:\n    @staticmethod\n    @triton.jit\n    def k{0}(p):\n        tl.store(p, 1)\n",
        "    C{0}.k{0}[(1,)](x)\n",
    ),
    "sources": ("K{0} = cpp_kernel('''\nvoid f(float* x) {{ x[0] = {0}; }}\n''', 'f')\n", "    K{0}(x)\n"),
    "plans": ("def p{0}(n):\n    KEPT[{0}] = n\n    return n\n", "    n{0} = str(p{0}(1))\n"),
    "broken rules": ("", "    b{0} = x.relu{0}()\n"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", GROWING)
def test_the_work_grows_with_the_text_and_no_faster(kind):
    """Twice as much of each kind took four times the work."""
    small, large = work(kind, 60), work(kind, 120)
    assert large < 2.5 * small


def work(kind: str, count: int) -> int:
    """Calls of functions while a file of `count` such parts is inspected."""
    module, body = ("".join(part.format(n, n + 1) for n in range(count)) for part in GROWING[kind])
    text = f"{HEAD}{module}def fused(x):\n{body}    return x\ndef replacement_func():\n    return fused\n"
    profile = cProfile.Profile()
    profile.runcall(static.inspect, Candidate({"P.py": text}))
    return sum(entry.callcount for entry in profile.getstats())


def test_sources_and_ptx_are_read_in_one_go():
    """Each took minutes of the trusted side's time."""
    called = "f " * 100_000
    source = f"{called}; __global__ void f(int n) {{}} {'using ' * 100_000}"
    (kernel,) = [cuda_source.find(lexer.read(source, "cuda"), "f")]
    assert [parameter.base for parameter in kernel.parameters] == ["int"]
    tables = "".join(f".visible .global .align 4 .u32 t{n};\n" for n in range(5000))
    loads = "".join(f"mov.u64 %rd{n}, t{n};\nld.global.u32 %r{n}, [%rd{n}];\n" for n in range(5000))
    assert ptx.written(f"{tables}.visible .entry f()\n{{\n{loads}}}\n") == []


def test_the_table_in_the_docs_is_what_the_code_allows():
    text = (Path(__file__).parents[1] / "docs" / "evaluator.md").read_text()
    table = text.partition("## What each stage may take\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\|.*\|$", table, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[2:] == [
        [
            stage.name,
            f"{stage.wall_s:g} s",
            f"{stage.cpu_s} s" if stage.cpu_s else "",
            size("bytes", stage.memory) if stage.memory else "",
            ", ".join(size(what, amount) for what, amount in stage.sizes.items()),
        ]
        for stage in limits.stages()
    ]


def size(what: str, amount: int) -> str:
    """`16 MiB of a message` for `bytes of a message`."""
    if not what.startswith("bytes"):
        return f"{amount} {what}"
    shift, unit = (30, "GiB") if amount >= 1 << 30 else (20, "MiB")
    return f"{amount >> shift} {unit}{what.removeprefix('bytes')}"
