"""What each stage of an evaluation may take."""

import re
from pathlib import Path

import pytest
import stages

from passagent.evaluator.judging.recorder import check_files
from passagent.kernels import cuda_source, lexer, ptx

SHORT = "import torch\n"


@pytest.mark.parametrize(
    "files",
    [{"P.py": "x" * (1 << 20)}, {f"p{n}.py": SHORT for n in range(201)}],
    ids=["bytes", "files"],
)
def test_what_is_too_large_is_not_read(files):
    [found] = check_files(files)
    assert (found.rule, found.line) == ("too_large", 1)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["P.py", "a/b.py", "a/__init__.py", "x.json", "re-ad.me.txt"], []),
        (["../P.py"], ["../P.py"]),
        (["/etc/P.py"], ["/etc/P.py"]),
        (["a/../b.py"], ["a/../b.py"]),
        (["a.so"], ["a.so"]),
        (["a b.py"], ["a b.py"]),
        (["a.py", "a/__init__.py"], ["a.py", "a/__init__.py"]),
    ],
)
def test_names_stay_inside_and_are_different_modules(names, wrong):
    found = check_files(dict.fromkeys(names, SHORT))
    assert [(one.rule, one.file) for one in found] == [("file_name", name) for name in wrong]


def test_sources_and_ptx_are_read_in_one_go():
    """Each took minutes of the trusted side's time."""
    called = "f " * 100_000
    source = f"{called}; __global__ void f(int n) {{}} {'using ' * 100_000}"
    (kernel,) = [cuda_source.find(lexer.read(source), "f")]
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
            f"{stage.wall_s:g} s" if stage.wall_s else "",
            f"{stage.cpu_s} s" if stage.cpu_s else "",
            size("bytes", stage.memory) if stage.memory else "",
            ", ".join(size(what, amount) for what, amount in stage.sizes.items()),
        ]
        for stage in stages.stages()
    ]


def size(what: str, amount: int) -> str:
    """`16 MiB of a message` for `bytes of a message`."""
    if not what.startswith("bytes"):
        return f"{amount} {what}"
    shift, unit = (30, "GiB") if amount >= 1 << 30 else (20, "MiB")
    return f"{amount >> shift} {unit}{what.removeprefix('bytes')}"
