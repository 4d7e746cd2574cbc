"""Honest designs pass static inspection; each attack is refused by its rule, at its line."""

import ast

import pytest
from honest import HEAD, HONEST, HOST, KERNEL, PASS, candidate, host

from passagent.evaluator.guards.static import inspect
from passagent.evaluator.result import MANIFEST, Candidate

ATTACKS = {
    "torch.add": ("host_name", host("return torch.add(x, y)")),
    "torch.nn.functional": ("host_name", host("return torch.nn.functional.relu(x)")),
    "torch.ops": ("host_name", host("return torch.ops.aten.relu.default(x)")),
    "torch._C": ("private_attribute", host("return torch._C._nn.gelu(x)")),
    "torch.compile": ("host_name", host("return torch.compile(fused)(x, y)")),
    "tensor method": ("host_method", host("return x.relu()")),
    "in-place method": ("host_method", host("x.add_(y)\nreturn x")),
    "add, a method of sets too": ("host_method", host("return x.add(y)")),
    "max of a tensor": ("host_method", host("return x.max(dim=0)")),
    "bound method as a value": ("host_method", host("f = x.mul\nreturn f(y)")),
    "cast by to": ("host_cast", host("return x.to(torch.float32)")),
    "cast by keyword": ("host_cast", host("return x.to(dtype=y.dtype)")),
    "cast by method": ("host_cast", host("return x.float()")),
    "matmul": ("host_operator", host("return x @ y")),
    "store into a slice": ("tensor_store", host("out = torch.empty_like(x)\nout[:, 0:1] = x\nreturn out")),
    "getattr": ("builtin", host('return getattr(torch, "add")(x, y)')),
    "eval": ("builtin", host('return eval("torch.add(x, y)")')),
    "open": ("builtin", host('open("/tmp/memo")\nreturn x')),
    "type": ("builtin", host("return type(x)")),
    "id": ("builtin", host("return id(x)")),
    "__builtins__": ("builtin", host('return __builtins__["eval"]')),
    "a builtin hidden behind a comprehension": (
        "builtin",
        host('z = [0 for open in (1,)]\nopen("f")\nreturn x'),
    ),
    "dunder": ("private_attribute", host("return x.__add__(y)")),
    "version counter": ("private_attribute", host("return x._version")),
    "globals of a function": ("private_attribute", host('return fused.__globals__["torch"]')),
    "function attribute": ("attribute_store", host("fused.memo = x\nreturn x")),
    "module attribute": ("attribute_store", host("torch.relu = fused\nreturn x")),
    "global": ("statement", host("global memo\nmemo = x\nreturn x")),
    "mutable default": ("mutable_default", host("def inner(a, memo={}):\n    return a\nreturn inner(x)")),
    "nested class": ("statement", host("class T(torch.Tensor):\n    pass\nreturn x")),
    "match on attributes": (
        "statement",
        host("match x:\n    case object(add=f):\n        return f(y)\nreturn x"),
    ),
    "cuda stream": ("context", host("with torch.cuda.stream(None):\n    return x")),
    "module as a value": ("host_name", host("t = torch\nreturn t.add(x, y)")),
    "partial": ("host_name", host("return functools.partial(torch.add, x)(y)")),
    "dict of functions": ("host_name", candidate('\nTABLE = {"a": torch.add}\n', KERNEL, HOST)),
    "operator module": (
        "host_name",
        candidate("\nimport operator\n", KERNEL, HOST.replace("return out", "return operator.add(x, y)")),
    ),
    "compute when imported": ("host_name", candidate("\n_C = torch.randn(4)\n", KERNEL, HOST)),
    "call when imported": ("module_call", candidate("\nprint(1)\n", KERNEL, HOST)),
    "math, rebound": ("rebound_import", candidate("\nmath = torch.empty(4)\n", KERNEL, HOST)),
    "math, imported twice": (
        "rebound_import",
        candidate(
            "\nimport torch.nn.functional as m\n\n\ndef never():\n    import math as m\n", KERNEL, HOST
        ),
    ),
    "os": ("import", candidate("\nimport os\n", KERNEL, HOST)),
    "sys inside a function": ("import", host("import sys\nreturn x")),
    "ctypes": ("host_extension", candidate("\nimport ctypes\n", KERNEL, HOST)),
    "load_inline": (
        "host_extension",
        candidate("\nfrom torch.utils.cpp_extension import load_inline\n", KERNEL, HOST),
    ),
    "star import": ("star_import", candidate("\nfrom torch import *\n", KERNEL, HOST)),
    "private import": ("private_attribute", candidate("\nfrom torch import _C\n", KERNEL, HOST)),
    "imported by name": (
        "host_name",
        candidate("\nfrom torch import add\n", KERNEL, HOST.replace("return out", "return add(x, y)")),
    ),
    "kernels of the evaluator": ("import", candidate("\nfrom passagent.kernels import cpp\n", KERNEL, HOST)),
    "the evaluator": ("import", candidate("\nfrom passagent.evaluator import score\n", KERNEL, HOST)),
    "pattern called": ("pattern_reference", host("return pattern(x, y)")),
    "pattern aliased": (
        "pattern_reference",
        candidate(KERNEL, HOST, "\n\ndef f():\n    return replacement_args\n"),
    ),
    "entry cached": ("cached_entry", host("return x", decorator="@functools.lru_cache")),
    "cached tensor": (
        "cached_tensor",
        candidate("\n\n@functools.cache\ndef memo(x):\n    return torch.empty(x.shape)\n", KERNEL, HOST),
    ),
    "decorator": ("decorator", host("return x", decorator="@fused_by")),
    "torch in a kernel": (
        "kernel_name",
        candidate(KERNEL.replace("    mask = offsets < n\n", "    mask = torch.add(offsets, n)\n"), HOST),
    ),
    "a library's module through triton": (
        "kernel_name",
        candidate(
            KERNEL.replace("    mask = offsets < n\n", '    tl.core.os.system("true")\n    mask = 1\n'), HOST
        ),
    ),
    "host function in a kernel": (
        "kernel_name",
        candidate(KERNEL.replace("    mask = offsets < n\n", "    mask = fused(offsets, n)\n"), HOST),
    ),
    "insides of the interpreter": (
        "kernel_attribute",
        candidate(KERNEL.replace("    mask = offsets < n\n", "    mask = offsets.handle.data\n"), HOST),
    ),
    "inline assembly": (
        "inline_assembly",
        candidate(
            KERNEL.replace("    mask = offsets < n\n", '    mask = tl.inline_asm_elementwise("")\n'), HOST
        ),
    ),
    "import in a kernel": (
        "kernel_statement",
        candidate(KERNEL.replace("    mask = offsets < n\n", "    import os\n    mask = 1\n"), HOST),
    ),
    "a file named torch": ("module_name", candidate(KERNEL, HOST, torch="def add(x, y):\n    return x\n")),
    "helper re-exports torch": (
        "host_name",
        candidate(
            "\nimport helper\n",
            KERNEL,
            HOST.replace("return out", "return helper.t.add(x, y)"),
            helper="import torch as t\n",
        ),
    ),
    "helper that no pass imports": ("import", candidate(KERNEL, HOST, helper="import os\n")),
    "helper's pattern": (
        "pattern_reference",
        candidate(
            "\nfrom helper import pattern as p\n", KERNEL, HOST, helper="def pattern(x):\n    return x + 1\n"
        ),
    ),
    "method of torch.Tensor": ("host_name", host("return torch.Tensor.add(x, y)")),
    "method of a helper's tensor": (
        "host_method",
        candidate(
            "\nimport helper\n",
            KERNEL,
            HOST.replace("return out", "helper.BUFFER.copy_(x)\n    return helper.BUFFER.sum()"),
            helper="import torch\n\nBUFFER = torch.empty(4)\n",
        ),
    ),
    "cast of a helper's tensor": (
        "host_cast",
        candidate(
            "\nfrom helper import BUFFER\n",
            KERNEL,
            HOST.replace("return out", "return BUFFER.to(torch.float16)"),
            helper="import torch\n\nBUFFER = torch.empty(4)\n",
        ),
    ),
    "math, rebound for a while": (
        "rebound_import",
        candidate("\nmath = torch.empty(4)\nmath = None\n", KERNEL, HOST),
    ),
    "math, rebound by match": (
        "statement",
        candidate("\nmatch 1:\n    case math:\n        pass\n", KERNEL, HOST),
    ),
    "module hook": ("private_attribute", candidate("\n__getattr__ = max\n", KERNEL, HOST)),
    "launch in a cached function": (
        "cached_tensor",
        candidate(
            KERNEL,
            "\n\n@functools.cache\ndef memo(x, y):\n    add_relu[(1,)](x, y, x, 4, BLOCK=4)\n    return x\n",
            HOST,
        ),
    ),
    "pattern assigned": ("role_assigned", candidate(KERNEL, HOST, "\n\nreplacement_args = fused\n")),
    "deep nesting": ("nesting", Candidate({"P.py": "x = " + "-" * 20000 + "1\n", MANIFEST: '["P"]'})),
}
PATTERNS = {
    "import": ("pattern_body", "    import os\n    return in_0 + in_1"),
    "own function": ("pattern_body", "    return fused(in_0, in_1)"),
    "comprehension": ("pattern_body", "    return [a for a in (in_0, in_1)][0] + 1"),
    "loop": ("pattern_body", "    for a in (in_0, in_1):\n        in_0 = a + 1\n    return in_0"),
    "open": ("pattern_body", '    open("f")\n    return in_0 + in_1'),
    "attribute": ("pattern_body", "    torch.relu = in_0\n    return in_0 + in_1"),
}
ARGUMENTS = {
    "torch": "return (torch.add(in_0, in_1),)",
    "method": "return (in_0.float(), in_1)",
    "arithmetic": "return (in_0 + in_1,)",
    "statement": "x = in_0\n    return (x,)",
    "no tuple": "return in_0",
    "call": "return fused(in_0, in_1)",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_design_passes(name):
    for file, text in HONEST[name].files.items():
        if file.endswith(".py"):
            ast.parse(text)
    assert inspect(HONEST[name]) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused(name):
    rule, files = ATTACKS[name]
    if rule != "nesting":
        for file, text in files.files.items():
            if file.endswith(".py"):
                ast.parse(text)
    found = inspect(files)
    assert rule in {violation.rule for violation in found}
    assert all(
        violation.message and violation.line > 0 and violation.file in files.files for violation in found
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_holds_operators_only(name):
    rule, body = PATTERNS[name]
    body_of = "    tmp_0 = in_0 + in_1\n    return torch.nn.functional.relu(tmp_0)"
    files = {"P.py": HEAD + KERNEL + HOST + PASS.replace(body_of, body), MANIFEST: '["P"]'}
    assert {violation.rule for violation in inspect(Candidate(files))} >= {rule}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_replacement_args_arrange_only(name):
    text = PASS.replace("return (in_0, in_1)", ARGUMENTS[name])
    found = inspect(Candidate({"P.py": HEAD + KERNEL + HOST + text, MANIFEST: '["P"]'}))
    assert {violation.rule for violation in found} == {"replacement_args_body"}


@pytest.mark.parametrize(
    "returned", ["torch.relu", "lambda x, y: x", "add_relu", "pattern", "functools.partial(fused)"]
)
def test_replacement_func_returns_a_function_of_the_candidate(returned):
    text = PASS.replace("    return fused\n", f"    return {returned}\n")
    found = inspect(Candidate({"P.py": HEAD + KERNEL + HOST + text, MANIFEST: '["P"]'}))
    assert "replacement_func_body" in {violation.rule for violation in found}


def test_violation_names_file_line_and_what_to_do():
    files = {"P.py": "import torch\n\n\ndef helper(x):\n    y = x.view(-1)\n    return torch.softmax(y, 0)\n"}
    (violation,) = inspect(Candidate(files))
    assert (violation.file, violation.line, violation.rule) == ("P.py", 6, "host_name")
    assert "torch.softmax" in violation.message
    assert "kernel" in violation.message


def test_kernel_source_is_checked_at_its_own_line():
    text = 'from passagent.kernels import cpp_kernel\n\nK = cpp_kernel(\n    r"""\n#include <cmath>\n'
    text += '#include <fstream>\n""",\n    "f",\n)\n'
    (violation,) = inspect(Candidate({"helper.py": text}))
    assert (violation.rule, violation.line) == ("cpp_include", 6)


def test_file_that_does_not_parse_is_no_violation():
    assert inspect(Candidate({"P.py": "def pattern(:\n"})) == []
