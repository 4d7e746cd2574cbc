"""What `passagent best` writes has nothing that only passes which it left out needed, and no idle option."""

from __future__ import annotations

import ast

import pytest
from cases import write_task
from exported import Judge, by_the_expert, delivered, is_clean, written
from test_delivery import two_passes

from passagent.delivery.choice import only, passes_of
from passagent.delivery.idle_options import without_options
from passagent.delivery.trimming import trimmed
from passagent.evaluator.candidate import MANIFEST


def functions(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize(("stays", "goes"), [("FuseMulTanh", "FuseAddRelu"), ("FuseAddRelu", "FuseMulTanh")])
def test_the_pass_that_is_left_of_two_stands_in_one_file(stays, goes, recorder, tmp_path):
    task = write_task(tmp_path / "task", "two_regions")
    files = by_the_expert(task, "cpu")
    assert passes_of(files) == ["FuseMulTanh", "FuseAddRelu"] and "fused_mul_tanh_kernels.py" in files
    result = delivered(files, Judge(task, worth={goes: -0.1}), recorder)
    [note] = result.story.notes
    assert note.startswith("The run's figure") and list(result.story.dropped) == [goes]
    assert [name for name in result.files if name.endswith(".py") and "/" not in name] == [
        f"{stays}.py",
        "test_passes.py",
    ]
    text = result.files[f"{stays}.py"]
    entry, other = ("fused_mul_tanh", "fused_add_relu")[:: 1 if stays == "FuseMulTanh" else -1]
    assert other not in text and goes not in text and "route" not in text
    assert functions(text)[-2:] == [entry, "replacement_func"]
    is_clean(written(result, tmp_path / "out"))


def test_a_branch_of_an_expression_goes_too(recorder, tmp_path):
    task = write_task(tmp_path / "regions", "two_regions")
    result = delivered(two_passes(), Judge(task, worth={"Squash": -0.1}), recorder)
    [note] = result.story.notes
    assert note.startswith("The run's figure") and passes_of(result.files) == ["Twice"]
    text = result.files["Twice.py"]
    assert "squash" not in text and "route" not in text and "    twice(out, x, x.numel())" in text


HEAD = "import torch\nfrom shared import entry\n\n\n"
REST = "\n\n\ndef replacement_func():\n    return entry\n"


def three(shared: str) -> dict[str, str]:
    """Passes A, B and C, which name their routes `a`, `b` and `c` in calls of `entry`."""
    files = {f"{n}.py": f'{HEAD}def replacement_args(x):\n    return ("{n.lower()}", x){REST}' for n in "ABC"}
    return files | {"shared.py": shared, MANIFEST: '["A", "B", "C"]'}


CHAIN = '''"""What A, B and C call."""
import kernels

KEPT = 1
LOST = {"b": 2}


def _b(x):
    return kernels.b(x, LOST)


def entry(route, x):
    if route == "a":
        y = kernels.a(x, KEPT)
    elif route == "b":
        y = _b(x)
    else:
        y = kernels.c(x)
    return y
'''
EARLY = """import kernels


def entry(route, x):
    # the routes in turn
    if route != "c":
        if route == "a":
            return kernels.a(x)
        if route == "b":
            return kernels.b(x)
    return kernels.c(x)
"""


def test_of_three_routes_two_stay():
    files = three(CHAIN)
    shared = trimmed(only(files, ["A", "C"]), files)["shared.py"]
    assert functions(shared) == ["entry"] and "LOST" not in shared and "KEPT = 1" in shared
    assert "else:\n        y = kernels.c(x)" in shared and '"b"' not in shared and "elif" not in shared
    assert shared.startswith('"""What A and C call."""')
    last = trimmed(only(files, ["A", "B"]), files)["shared.py"]
    assert "else:\n        y = _b(x)" in last and "kernels.c" not in last
    one = trimmed(only(three(EARLY), ["C"]), three(EARLY))
    assert "return kernels.c(x)" in one["C.py"] and "kernels.a" not in one["C.py"] and "shared.py" not in one
    assert '("c", x)' not in one["C.py"] and "return (x,)" in one["C.py"]


def test_what_is_not_known_stays():
    """No route is dead, or the shared function is not understood."""
    files = three(CHAIN)
    assert trimmed(files, files) == files
    table = three("import kernels\n\n\ndef entry(route, x):\n    return getattr(kernels, route)(x)\n")
    left = trimmed(only(table, ["A", "B"]), table)
    assert left["shared.py"] == table["shared.py"] and left["A.py"] == table["A.py"]
    single = trimmed(only(table, ["A"]), table)
    assert "getattr(kernels, route)(x)" in single["A.py"] and 'return ("a", x)' in single["A.py"]


ROWS = '''
def _rows(n, tiled=False, most=16):
    """Rows of a program.

    They may be tiled.
    """
    if tiled:
        n = min(n, 8)
    return (n if not tiled else 2 * n) + most


def plan(é, n):
    return _rows("é", {first}), _rows(n, {second})
'''


@pytest.mark.parametrize(
    ("first", "second", "signature", "has"),
    [
        ("most=4", "most=5", "_rows(n, most=16)", []),
        ("tiled=True", "tiled=True", "_rows(n)", ["n = min(n, 8)"]),
        ("most=4, tiled=True", "most=4", "_rows(n, tiled=False)", ["if tiled:"]),
        ("True", "tiled=True", "_rows(n, tiled=False)", ["if tiled:"]),
    ],
)
def test_an_option_that_is_always_the_same_goes(first, second, signature, has):
    text = ROWS.format(first=first, second=second)
    shorter = without_options(text)
    assert f"def {signature}:" in shorter
    assert all(part in shorter for part in has) == bool(has) or not has
    before, after = {}, {}
    for source, scope in ((text, before), (shorter, after)):
        exec(source.replace('"é"', "3"), scope)
    assert before["plan"](0, 20) == after["plan"](0, 20)
    if "if tiled" not in shorter:
        assert "They may be tiled" not in shorter and "tiled" not in shorter


@pytest.mark.parametrize(
    ("before", "after"),
    [("def _rows", "@cached\ndef _rows"), ("    if tiled", "    # why\n    if tiled"), ("_rows", "rows")],
)
def test_a_function_that_is_not_plain_keeps_its_options(before, after):
    text = ROWS.format(first="most=4", second="most=4").replace(before, after)
    assert without_options(text) == text
