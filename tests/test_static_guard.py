"""The static guard: what the suites of files cannot show. Each attack there is judged by test_adversarial."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import io
import re
import textwrap
import tokenize
import types

import pytest
import torch
import triton
import triton.language as tl
from cases import HERE, read_case
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passagent.evaluator.guards.records import is_field
from passagent.evaluator.guards.rules import HOST_ATTRIBUTES
from passagent.evaluator.guards.static import inspect
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.target import target_of
from passagent.kernels import cpp_kernel, cuda_kernel

HEAD = """import functools
import math
import typing

import torch
import triton
import triton.language as tl

LIMITS = {2: (64, 4), 4: (32, 8)}
"""
PASS = """

@triton.jit
def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def pattern(in_0, in_1):
    tmp_0 = in_0 + in_1
    return torch.nn.functional.relu(tmp_0)


def replacement_args(in_0, in_1):
    return (in_0, in_1)


def replacement_func():
    return fused
"""


def source(body: str, module: str = "") -> str:
    """A pass whose `fused(x, y)` has this body, and whose module has these statements before it."""
    return f"{HEAD}{module}\n\ndef fused(x, y):\n{textwrap.indent(body, '    ')}\n{PASS}"


def found(text: str, **others: str) -> list:
    files = {"P.py": text, MANIFEST: '["P"]'} | {f"{name}.py": other for name, other in others.items()}
    return inspect(Candidate(files))


def rules(text: str, **others: str) -> set[str]:
    return {violation.rule for violation in found(text, **others)}


PATTERNS = {
    "import": "    import os\n    return in_0 + in_1",
    "own function": "    return fused(in_0, in_1)",
    "comprehension": "    return [a for a in (in_0, in_1)][0] + 1",
    "loop": "    for a in (in_0, in_1):\n        in_0 = a + 1\n    return in_0",
    "open": '    open("f")\n    return in_0 + in_1',
    "attribute": "    torch.relu = in_0\n    return in_0 + in_1",
}
ARGUMENTS = {
    "torch": "return (torch.add(in_0, in_1),)",
    "method": "return (in_0.float(), in_1)",
    "arithmetic": "return (in_0 + in_1,)",
    "arithmetic with itself": "return (in_0 * in_0,)",
    "a shape": "return (in_0, in_1, in_0.shape[0])",
    "own function in a number": "return (fused(in_0, 2) * 2,)",
    "statement": "x = in_0\n    return (x,)",
    "no tuple": "return in_0",
    "call": "return fused(in_0, in_1)",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_holds_operators_only(name):
    body = "    tmp_0 = in_0 + in_1\n    return torch.nn.functional.relu(tmp_0)"
    assert "pattern_body" in rules(source("return x").replace(body, PATTERNS[name]))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_replacement_args_arrange_only(name):
    assert rules(source("return x").replace("return (in_0, in_1)", ARGUMENTS[name])) == {
        "replacement_args_body"
    }


@pytest.mark.parametrize("returned", ["torch.relu", "lambda x, y: x", "kernel", "pattern", "partial(fused)"])
def test_replacement_func_returns_a_function_of_the_candidate(returned):
    assert "replacement_func_body" in rules(
        source("return x").replace("return fused\n", f"return {returned}\n")
    )


def test_pattern_may_hold_factories_and_index_arithmetic():
    pattern = """def pattern(in_0, size):
    tmp_0 = torch.arange(0, size, device=torch.device(type="cuda", index=0))
    tmp_1 = in_0[(slice(None, None, None), None, slice(0, size, None))]
    tmp_2 = 1.0 - tmp_1.to(torch.float32)
    tmp_3 = tmp_2.masked_fill(tmp_2.to(torch.bool), LOW)
    a, b = torch.nn.functional.softmax(tmp_3, -1).chunk(2, dim=-1)
    return (tmp_0, a, b)


def replacement_args(in_0, size):
    return (in_0, size, -1, 2 * 3, "route", torch.float32, None, (1, 2), float("-inf"))


def replacement_func"""
    before, _, after = PASS.partition("def pattern")
    text = HEAD + "\nLOW = -3.4e38\n\n\ndef fused(*args):\n    return args\n"
    assert found(text + before + pattern + after.partition("def replacement_func")[2]) == []


@pytest.mark.parametrize(
    ("first", "second", "is_fine"),
    [
        ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice", True),
        ("triton.language.extra.libdevice", "triton.language.math", True),
        ("triton.language.extra.libdevice", "triton.language", False),
        ("triton.language.extra.libdevice", "math", False),
    ],
)
def test_a_function_of_one_library_may_be_imported_from_where_it_is(first, second, is_fine):
    text = f"try:\n    from {first} import tanh\nexcept ImportError:\n    from {second} import tanh\n"
    assert ("rebound_import" in rules(source("    return torch.empty_like(a)", text))) != is_fine


FALLBACK = "try:\n    from triton.language.extra.libdevice import tanh\nexcept ImportError:\n"
NEIGHBOURS = {
    "a logger's manager": ("import logging\n", "logging.getLogger('a').manager"),
    "a module behind logging": ("import logging\n", "logging.os.getenv('A')"),
    "a module of logging's": ("from logging import sys\n", "sys.modules"),
    "logging's classes": ("import logging\n", "logging.setLoggerClass(x)"),
    "a module behind warnings": ("import warnings\n", "warnings.sys.modules"),
    "filters": ("import warnings\n", "warnings.simplefilter('error')"),
    "a module behind packaging": ("import packaging.version\n", "packaging.version.re"),
    "a habitual import that is used": ("import os\n", "os.getcwd()"),
    "used as a value": ("import sys\n", "[sys]"),
    "used by another name": ("import numpy as np\n", "np.add(1, 2)"),
    "a name of it that is used": ("from time import time\n", "time()"),
    "in a helper": ("import helper\n", "helper.os.getcwd()"),
    "from a helper": ("from helper import os\n", "os.getenv('A')"),
    "helpers of kernels in host code": (
        "from torch._inductor.runtime import triton_helpers\n",
        "triton_helpers.maximum(x, y)",
    ),
    "what else they hold": (
        "from torch._inductor.runtime import triton_helpers\n",
        "triton_helpers.set_driver_to_gpu()",
    ),
    "hasattr of a tensor": ("", "hasattr(x, 'relu')"),
    "hasattr with an assembled name": ("", "hasattr(tl, str(x))"),
    "hasattr of what is private": ("", "hasattr(torch, '__dict__')"),
    "getattr of a module": ("", "getattr(tl, 'exp')(x)"),
    "by version, one of them torch's": ("if LIMITS:\n    f = tl.exp\nelse:\n    f = torch.exp\n", "x"),
    "by version, called on the host": ("if LIMITS:\n    f = tl.exp\nelse:\n    f = tl.exp2\n", "f(x)"),
    "by version, and elsewhere": ("if LIMITS:\n    f = tl.exp\nf = torch.exp\n", "x"),
    "a fallback that is torch's": (f"{FALLBACK}    tanh = torch.tanh\n", "x"),
    "a fallback that is the host's": (f"{FALLBACK}    tanh = math.tanh\n", "x"),
    "a call for its effect": ("LIMITS.update({})\nprint(LIMITS)\n", "x"),
    "a pair of names for torch": ("f, g = torch.add, 1\n", "f(x, y)"),
    "a tensor in a list": ("TABLE = []\nTABLE.append(torch.empty(1))\n", "x"),
    "a total that is computed": (
        "class A(typing.TypedDict, total=open(0)):\n    rows: int\n\n\ndef f(a: A):\n    return a\n",
        "f(x)",
    ),
    "a default that is a built-in": ("def f(x, eval=eval):\n    return eval('x')\n", "f(x)"),
    "an annotation that is a built-in": ("def f(open: open(0)):\n    return open\n", "f(x)"),
    "a function with a built-in's name": ("def eval(x):\n    return x\n", "eval(x)"),
    "a kernel's parameter": (
        "@triton.jit\ndef f(getattr):\n    tl.store(getattr, 1)\n",
        "f[(1,)](x)",
    ),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_what_lies_beside_a_convenience_is_refused(name):
    module, used = NEIGHBOURS[name]
    assert found(source(f"return {used}", module=module), helper="import os\n")


@pytest.mark.parametrize(
    "helper",
    ["from gc import get_objects as view\n", "from sys import modules as rows\n", "import os as values\n"],
)
def test_a_habitual_import_has_no_name_that_is_written_anywhere(helper):
    name = helper.split()[-1]
    assert found(source("return x", module="import helper\n"), helper=helper) == []
    ways = (f"from helper import {name}\n", f"def f(h):\n    return h.{name}\n")
    for module in (*ways, f"def f(h):\n    return getattr(h, '{name}')\n"):
        violations = found(source("return f(x)", module=module), helper=helper)
        assert [v.rule for v in violations if v.file == "helper.py"] == ["import"]


def test_an_import_in_a_function_is_no_parameter_of_it():
    module = "def f(helper):\n    import helper\n    return helper.view\n"
    assert "rebound_import" in rules(source("return f(x)", module=module), helper="view = 1\n")


OWN_DECORATORS = {
    "around a kernel": "def d(f):\n    return f\n\n\n@d\n@triton.jit\ndef k(x):\n    tl.store(x, 1)\n",
    "inside of a kernel's": "def d(f):\n    return f\n\n\n@triton.jit\n@d\ndef k(x):\n    tl.store(x, 1)\n",
    "beside a cache": "def d(f):\n    return f\n\n\n@functools.cache\n@d\ndef g(n):\n    return n\n",
    "that caches": "def d(f):\n    return functools.cache(f)\n\n\n@d\ndef g(n):\n    return n\n",
    "that is a kernel": "@triton.jit\ndef d(f):\n    tl.store(f, 1)\n\n\n@d\ndef g(n):\n    return n\n",
    "that is pattern": "@pattern\ndef g(n):\n    return n\n",
    "that is a value": "d = {}.get\n\n\n@d\ndef g(n):\n    return n\n",
    "around a role": "def d(f):\n    return f\n\n\n@d\ndef replacement_args(x):\n    return (x,)\n",
    "wraps of torch's": "@functools.wraps(torch.add)\ndef g(n):\n    return n\n",
    "wraps around a kernel": "@functools.wraps(print)\n@triton.jit\ndef k(x):\n    tl.store(x, 1)\n",
    "wraps as a value": "w = functools.wraps\n",
}


@pytest.mark.parametrize("name", OWN_DECORATORS)
def test_a_decorator_of_its_own_is_for_host_functions_only(name):
    named = '__all__ = ["d", "g", "k", "w"]\n'
    assert found(source("return x", module=f"{named}\n\n{OWN_DECORATORS[name]}"))


@pytest.mark.parametrize("instead", ["torch.empty_like(x)", "input", "[bytes for bytes in (1, 2)]"])
def test_a_parameter_may_have_the_name_of_a_built_in(instead):
    module = (
        f"def f(input, vars, *, type=None, bytes=16, **dir):\n    return {instead.replace('x', 'input')}\n"
    )
    assert found(source("return f(x, 1)", module=module)) == []


def test_violation_names_file_line_and_what_to_do():
    text = "import torch\n\n\ndef helper(x):\n    y = x.view(-1)\n    return torch.softmax(y, 0)\n"
    text += "\n\ndef replacement_func():\n    return helper\n"
    (violation,) = inspect(Candidate({"P.py": text}))
    assert (violation.file, violation.line, violation.rule) == ("P.py", 6, "host_name")
    assert "torch.softmax" in violation.message
    assert "kernel" in violation.message


def test_kernel_source_is_checked_at_its_own_line():
    text = 'from passagent.kernels import cpp_kernel\n\nK = cpp_kernel(\n    r"""\n#include <cmath>\n'
    text += '#include <dlfcn.h>\n""",\n    "f",\n)\n'
    (violation,) = inspect(Candidate({"helper.py": text}))
    assert (violation.rule, violation.line) == ("cpp_include", 6)


KERNEL_SOURCES = {
    "plain": '"""\n#include <cmath>\n#include <dlfcn.h>  // here\n"""',
    "raw": 'r"""\n#define TWO 1 + \\\n  1\n#include <dlfcn.h>  // here\n"""',
    "begins after a splice": '"""\\\n#include <cmath>\n#include <dlfcn.h>  // here\n"""',
    "spliced by Python": '"""\n#define TWO 1 + \\\n  1\n#include <dlfcn.h>  // here\n"""',
    "in pieces": '("#include <cmath>\\n"\n "int f();\\n"  # a comment\n "#include <dlfcn.h>  // here\\n")',
    "on one line": '"\\n\\n\\x41;\\n#include <dlfcn.h>  // here\\n"',
    "joined": '"""\n#include <cmath>\n""" + HEAD + """\nint f();\n#include <dlfcn.h>  // here\n"""',
    "in the joined part": '"""\n#include <cmath>\n""" + BAD + """\nint f();\n"""',
    "dedented": 'textwrap.dedent("""\\\n    #include <cmath>\n\n    #include <dlfcn.h>  // here\n    """)',
}


@pytest.mark.parametrize("name", KERNEL_SOURCES)
def test_a_refusal_points_at_the_line_of_the_source_in_the_file(name):
    bad = '"\\n#include <dlfcn.h>  // here\\n"' if name == "in the joined part" else '""'
    text = f'import textwrap\nfrom passagent.kernels import cpp_kernel\n\nHEAD = "int g();\\n"\nBAD = {bad}\n'
    text += f'SOURCE = {KERNEL_SOURCES[name]}\nKERNEL = cpp_kernel(SOURCE, "f")\n'
    (violation,) = inspect(Candidate({"helper.py": text}))
    [expected] = [number for number, line in enumerate(text.split("\n"), 1) if "// here" in line]
    assert (violation.rule, violation.line) == ("cpp_include", expected)


def test_a_source_that_is_put_together_step_by_step_is_left_to_the_compiler():
    text = 'from passagent.kernels import cpp_kernel\n\nSOURCE = "int f();"\nSOURCE = SOURCE + "\\n"\n'
    assert inspect(Candidate({"helper.py": f'{text}KERNEL = cpp_kernel(SOURCE, "f")\n'})) == []


def test_host_extensions_only_where_they_are_allowed():
    text = "import ctypes\nfrom torch.utils.cpp_extension import load_inline\n"
    assert {violation.rule for violation in inspect(Candidate({"P.py": text}))} == {"host_extension"}
    assert inspect(Candidate({"P.py": text}), host_extensions=True) == []
    assert inspect(Candidate({"P.py": text + "import socket\n"}), host_extensions=True) != []


def test_host_extensions_may_be_used_where_they_are_allowed():
    text = (
        "import torch\nfrom torch.utils.cpp_extension import load_inline\n\n"
        'module = load_inline(name="m", cpp_sources=["..."], functions=["add_relu"])\n\n\n'
        "def fused(x, y):\n    return module.add_relu(x, y)\n"
    )
    assert inspect(Candidate({"P.py": text}), host_extensions=True) == []
    assert {violation.rule for violation in inspect(Candidate({"P.py": text}))} >= {"host_extension"}


@pytest.mark.parametrize(
    "name",
    ["../P.py", "/P.py", "a/../P.py", "a//P.py", "a\\P.py", "tоrch.py", "P.so", "P.py\n", "k.ptx", ".py"],
)
def test_file_names_stay_inside(name):
    (violation,) = inspect(Candidate({name: "", "P.py": ""}))
    assert violation.rule == "file_name"


def test_file_that_does_not_parse_is_no_violation():
    for text in ("def pattern(:\n", "x = 'a\0b'\n", "\ufeff\ufeffx = 1\n", "return\n\tx\n  y"):
        assert inspect(Candidate({"P.py": text})) == []


def test_calls_in_circles_end():
    text = "".join(
        f"def f{i}(x):\n    z = f{(i + 1) % 40}(x) + f{(i + 7) % 40}(x)\n    KEPT[{i}] = z\n    return z\n"
        for i in range(40)
    )
    assert inspect(Candidate({"P.py": "KEPT = {}\n" + text})) == []


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "ascii", "us-ascii"])
def test_encodings_that_change_nothing(encoding):
    assert found(f"# -*- coding: {encoding} -*-\n" + source("return x")) == []


@pytest.mark.parametrize(
    "head", ["", "#\n", "#\f#\f\n", "#\r#\r", "#\u2028#\n", "\n", "#\x1c#\x1d#\x1e#\v\n"]
)
def test_an_encoding_is_seen_where_python_sees_it(head):
    text = f"{head}# coding: utf-7\n"
    assert tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0] == "utf-7"
    assert "encoding" in rules(text)


@pytest.mark.parametrize(
    "decorators",
    [
        '@triton.heuristics({"N": lambda a: """\ndef kernel(x_ptr, y_ptr, out_ptr, n):\n    pass\n"""})\n',
        '@triton.heuristics({"N": lambda a: """\n@triton.jit\ndef other(x):\n    pass\n"""})\n',
        '@triton.autotune(configs=[], key="""\ndef f (\n""")\n',
    ],
)
def test_triton_reads_the_kernel_that_was_inspected(decorators):
    text = source("return kernel").replace("@triton.jit\n", decorators + "@triton.jit\n")
    ast.parse(text)
    assert "kernel_text" in rules(text)


def test_a_kernel_with_comments_strings_and_long_decorators_reads_as_it_stands():
    text = source("return kernel").replace(
        "@triton.jit\ndef kernel(x_ptr,",
        '@triton.autotune(\n    configs=[\n        triton.Config({"BLOCK": 64}),  # def x(\n    ],\n'
        '    key=["n"],\n)\n'
        '# a comment\n@triton.jit(\n    do_not_specialize=["n"],\n)\n'
        "def kernel(\n    # the input\n    x_ptr,",
    )
    assert (
        found(
            text.replace(
                "    offsets =", '    """Says def kernel( too.\n\n    def f(\n    """\n    offsets ='
            )
        )
        == []
    )


RECORDS = {
    "method that Triton asks for": "class Plan:\n    rows: int\n    def data_ptr(self):\n        return 1",
    "method that Python calls": "class Plan:\n    def __getattr__(self, name):\n        return 1",
    "method of torch's": "class Plan:\n    def __torch_function__(self, f, types, args):\n        pass",
    "maker without an instance": "class Plan:\n    @staticmethod\n    def __init__(x):\n        x.rows = 1",
    "maker of two": "class Plan:\n    def __init__(self, self2):\n        self2.rows = 1",
    "maker that takes another": "class Plan:\n    def __init__(self, x):\n        self = x\n"
    "        self.rows = 1",
    "maker of a hidden attribute": "class Plan:\n    def __init__(self):\n"
    "        self.__class__ = torch.Tensor",
    "later store": "class Plan:\n    def __call__(self):\n        self.rows = 1",
    "store in a function of the maker": "class Plan:\n    def __init__(self):\n        def total(self):\n"
    "            self.rows = 1",
    "operator in a method": "class Plan:\n    def total(self, x):\n        return torch.relu(x)",
    "other base": "class Plan(dict):\n    rows = 1",
    "two bases": "class Plan(NamedTuple, Enum):\n    rows: int",
    "metaclass": "class Plan(metaclass=type):\n    rows = 1",
    "other decorator": "@functools.partial(print)\nclass Plan:\n    rows = 1",
    "option that is computed": "@dataclass(frozen=len(sys))\nclass Plan:\n    rows: int",
    "hash of its own": "@dataclass(unsafe_hash=True)\nclass Plan:\n    rows: int",
    "private name": "class Plan(NamedTuple):\n    rows: int\n    __module__ = 'torch'",
    "fields that are computed": "Plan = namedtuple('Plan', LIMITS)",
    "another's module": "Plan = namedtuple('Plan', 'rows', module='torch')",
    "bases by another name": "Base = NamedTuple\nclass Plan(Base('Other', [])):\n    rows: int",
    "string with methods of its own": "class Mode(str):\n    ROWS = 1",
    "enumeration of tensors": "class Mode(torch.Tensor, Enum):\n    ROWS = 1",
    "enumeration of lists": "class Mode(list, Enum):\n    ROWS = 1",
    "string by another meaning": "for str in [torch.Tensor]:\n    pass\nclass Mode(str, Enum):\n    A = 1",
    "metadata of a field": "@dataclass\nclass Plan:\n    ROWS: list = field(metadata={0: []})",
    "field outside of a class": "ROWS = field(default=1)",
    "field of no dataclass": "class Plan:\n    ROWS: int = field(default=1)",
    "factory that computes": "@dataclass\nclass Plan:\n    ROWS: list = field(default_factory=torch.rand)",
    "in a function": "def make():\n    class Plan(NamedTuple):\n        rows: int\n    return Plan\nM = make",
}
IMPORTS = (
    "from collections import namedtuple\nfrom dataclasses import dataclass, field\nfrom enum import Enum\n"
    "from typing import NamedTuple\n"
)


@pytest.mark.parametrize(
    "name",
    [
        "block_size", "dim", "end", "is_causal", "is_even", "k_splits", "max_block", "min_rows", "options",
        "out_stride", "split", "split_k", "start", "stride", "use_fast_path", "with_bias",
    ],
)  # fmt: skip
def test_a_record_may_name_its_fields_by_ordinary_words(name):
    module = f"{IMPORTS}@dataclass\nclass Plan:\n    {name}: int\n    rows: int\n"
    assert found(source(f"plan = Plan(1, 2)\nreturn x.view(plan.{name}, plan.rows)", module=module)) == []


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_its_fields_and_no_more(name):
    assert found(source("return x", module=f"{IMPORTS}{RECORDS[name]}\nHELD = (Plan, Mode)\n"))


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "add",
        "data",
        "grad",
        "mode",
        "fn",
        "cache",
        "func",
        "args",
        "params",
        "dim_order",
        "max",
        "min",
        "FP_TYPES",
        "KIND",
    ],
)
def test_a_field_lends_its_name_to_no_other_attribute(name):
    module = f"{IMPORTS}class Plan(NamedTuple):\n    {name}: int\n    rows: int\n"
    assert found(source("return Plan(1, 2).rows", module=module)) == []
    [violation] = found(source(f"plan = Plan(1, 2)\nreturn x.{name}", module=module))
    assert "capitals" in violation.message
    assert found(source("return x.rows"))  # no record has such a field


def test_no_value_has_an_attribute_with_the_name_of_a_field():
    def kernel(x):
        pass

    jitted = triton.jit(kernel)
    tensor = torch.ones(1, requires_grad=True)
    values = [
        tensor, tensor.sum().grad_fn, tensor.untyped_storage(), tensor.shape, torch.float32, tensor.device,
        torch.finfo(torch.float32), torch.iinfo(torch.int8), torch.contiguous_format, torch.strided,
        torch.no_grad(), torch.inference_mode(), torch.Generator(), torch.cuda.Stream, torch.cuda.Event,
        torch.nn.Module(), torch.fx.GraphModule, "", b"", 1, 1.0, 1j, None, (), [], {}, set(), {}.items(),
        range(3), slice(1), kernel, len, "".join, functools.partial(len), functools.cache(len), zip(),
        iter([]), map(len, []), enumerate([]), (i for i in ()), OSError(), ImportError(), KeyError(),
        StopIteration(), UnicodeDecodeError("a", b"", 0, 1, ""), kernel.__code__, types.MethodType(len, ""),
        types.FrameType, types.TracebackType, types.CellType, object(), type, jitted, triton.Config({}),
        triton.autotune(configs=[triton.Config({"B": 1})], key=[])(jitted), triton.heuristics({})(jitted),
        triton.constexpr_function(kernel), tl.tensor, tl.block_type, tl.pointer_type, tl.tuple, tl.range,
        tl.tensor_descriptor, tl.float32, tl.slice, contextlib.nullcontext(), collections.OrderedDict(),
        contextlib.ExitStack(),
        collections.defaultdict(int), torch.cuda.device, torch.UntypedStorage, torch.Size, io.StringIO(),
        tl.constexpr(1), triton.compiler.CompiledKernel, triton.runtime.driver,
        cpp_kernel("template <class T> void f(T* out) {}", "f"), cuda_kernel("__global__ void f() {}", "f"),
    ]  # fmt: skip
    names = {name for value in values for name in {*dir(value), *getattr(value, "__dict__", ())}}
    harmless = {"kind", "block_shape", "start", "step", "stop", "end", "path", "strides"}  # facts
    harmless |= {"forward"}  # of modules, which no pass has
    known = HOST_ATTRIBUTES | harmless
    assert [name for name in sorted(names) if is_field(name) and name not in known] == []


@pytest.mark.parametrize("call", ["PLAN.__init__(2)", "Plan.__init__(PLAN, 2)", "Plan.__init__(x, 2)"])
def test_nothing_makes_an_object_again(call):
    module = "class Plan:\n    def __init__(self, rows):\n        self.rows = rows\nPLAN = Plan(1)\n"
    assert found(source("return PLAN.rows", module=module)) == []
    assert "private_attribute" in {v.rule for v in found(source(f"{call}\nreturn x", module=module))}


LIMITED = {
    "a local name": ("info = torch.finfo(x.dtype)\nreturn info.max", ""),
    "one of two": (
        "i = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)\nreturn i.min",
        "",
    ),
    "in a function within": (
        "info = torch.iinfo(x.dtype)\n\ndef low():\n    return info.min\n\nreturn low()",
        "",
    ),
    "a name of the module": ("return INFO.max", "INFO = torch.finfo(torch.float32)"),
    "a name of the module, made twice": (
        "return INFO.max",
        "INFO = torch.finfo(torch.float32)\nINFO = torch.iinfo(torch.int8)",
    ),
}
NOT_LIMITED = {
    "a parameter": ("return x.max", ""),
    "another value": ("info = x\nreturn info.max()", ""),
    "given twice": ("info = torch.finfo(x.dtype)\ninfo = x\nreturn info.max()", ""),
    "given on one path": (
        "if n:\n    info = torch.finfo(x.dtype)\nelse:\n    info = x\nreturn info.max()",
        "",
    ),
    "in a loop": ("info = torch.finfo(x.dtype)\nfor info in (x, y):\n    pass\nreturn info.max()", ""),
    "unpacked": ("info = torch.finfo(x.dtype)\ninfo, other = x, y\nreturn info.max()", ""),
    "by a walrus": ("info = torch.finfo(x.dtype)\nprint(info := x)\nreturn info.max()", ""),
    "by a default's walrus": (
        "f = lambda a=-(INFO := x): a\nreturn INFO.max()",
        "INFO = torch.finfo(torch.float32)",
    ),
    "added to": ("info = torch.finfo(x.dtype)\ninfo += x\nreturn info.max()", ""),
    "matched": ("info = torch.finfo(x.dtype)\nmatch x:\n    case info:\n        return info.max()", ""),
    "a lambda's parameter": ("info = torch.finfo(x.dtype)\nreturn (lambda info: info.max())(x)", ""),
    "a comprehension's": ("info = torch.finfo(x.dtype)\nreturn [info.max() for info in (x, y)]", ""),
    "an inner function's": (
        "info = torch.finfo(x.dtype)\n\ndef low(info):\n    return info.max()\n\nreturn low(x)",
        "",
    ),
    "a parameter like a name of the module": (
        "return low(x)",
        "INFO = torch.finfo(torch.int8)\n\ndef low(INFO):\n    return INFO.max()",
    ),
    "one of two is none": ("info = torch.finfo(x.dtype) if n else x\nreturn info.max()", ""),
    "of another torch": ("info = torch.finfo(x.dtype)\nreturn [info.max for torch in (x,)]", ""),
    "called": ("info = torch.finfo\nreturn info(x.dtype).max", ""),
    "in a block of the module": (
        "return INFO.max()",
        "INFO = torch.finfo(torch.int8)\nif LIMITS:\n    INFO = LIMITS",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_of_a_dtype_may_have_a_name(name):
    assert found(source(*LIMITED[name])) == []


@pytest.mark.parametrize("name", NOT_LIMITED)
def test_a_maximum_of_anything_else_is_refused(name):
    assert "host_method" in rules(source(*NOT_LIMITED[name]))


ENTERED = {
    "where there is a GPU": (
        "with torch.cuda.device(x.device) if x.is_cuda else nullcontext():\n    return x",
        True,
    ),
    "by a name": (
        "guard = nullcontext()\nif x.is_cuda:\n    guard = torch.cuda.device(0)\nwith guard:\n    return x",
        True,
    ),
    "another value": (
        "guard = nullcontext()\nif x.is_cuda:\n    guard = x\nwith guard:\n    return x",
        False,
    ),
    "one for all calls": ("with HELD:\n    return x", False),
    "one of two": ("with nullcontext() if n else x:\n    return x", False),
}


@pytest.mark.parametrize("name", ENTERED)
def test_a_context_is_one_that_does_nothing_or_names_a_device(name):
    statement, fine = ENTERED[name]
    module = "from contextlib import nullcontext\nHELD = nullcontext([])"
    assert ("context" not in rules(source(statement, module))) == fine


ALLOCATORS = {
    "one": ("triton.set_allocator(allocate)\nreturn x", True),
    "a partial function": ("triton.set_allocator(functools.partial(allocate, 1))\nreturn x", False),
    "a lambda": ("triton.set_allocator(lambda *args: allocate(*args))\nreturn x", False),
    "a function within": ("def inner(*args):\n    return n\n\ntriton.set_allocator(inner)\nreturn x", False),
    "one after the other": ("triton.set_allocator(allocate)\ntriton.set_allocator(other)\nreturn x", False),
    "another name for it": ("tell = triton.set_allocator\ntell(allocate)\nreturn x", False),
    "as a value": ("z = triton.set_allocator(allocate)\nreturn x", False),
    "by a keyword": ("triton.set_allocator(allocator=allocate)\nreturn x", False),
    "a local of that name": ("allocate = x\ntriton.set_allocator(allocate)\nreturn x", False),
    "a list's method": ("triton.set_allocator(LIMITS.pop)\nreturn x", False),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_triton_asks_one_function_for_memory(name):
    body, fine = ALLOCATORS[name]
    module = "\n\n".join(f"def {each}(size, *_):\n    return size" for each in ("allocate", "other"))
    assert (found(source(body, module)) == []) == fine


JIT = "@triton.jit\ndef helper(x):\n    return {}\n"
IN_BLOCKS = {
    "where an import fails": ("try:\n    from triton.language.math import sin as helper\n", "x", None),
    "imports another thing": ("try:\n    from torch import sin as helper\n", "x", "rebound_import"),
    "computes with torch": ("try:\n    import triton.language.math\n", "torch.sin(x)", "kernel_name"),
    "calls host code": ("try:\n    import triton.language.math\n", "fused(x, x)", "kernel_name"),
    "reads like another": ("try:\n    pass\n", '"""\n@triton.jit\ndef helper(x):\n    0"""', "kernel_text"),
    "at the top too": (f"{JIT.format('x')}\ntry:\n    pass\n", "x", "defined_twice"),
    "assigned too": ("try:\n    helper = tl.sin\n", "x", None),
    "assigned what computes": ("try:\n    helper = torch.sin\n", "x", "defined_twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_a_kernel_in_a_block_is_inspected_as_a_kernel(name):
    before, returned, rule = IN_BLOCKS[name]
    block = textwrap.indent(JIT.format(returned), "    ")
    text = source("return kernel", f"{before}except ImportError:\n{block}")
    text = text.replace("tl.load(x_ptr + offsets,", "helper(0) + tl.load(x_ptr + offsets,")
    assert (rule in rules(text)) if rule else (found(text) == [])


def test_host_code_in_a_block_and_a_kernel_in_a_function_are_told_so():
    block = "if LIMITS:\n    def helper(x):\n        return x\n"
    assert {v.message.partition(";")[0] for v in found(source("return helper", block))} == {
        "a function defined in a block"
    }
    body = textwrap.dedent(JIT.format("tl.sin(x)")) + "\nreturn helper"
    assert [v.message.partition(";")[0] for v in found(source(body))] == ["a kernel defined in a function"]


@pytest.mark.parametrize(
    ("asked", "fine"),
    [
        ('hasattr(tl, "sigmoid")', True),
        ('hasattr(torch, "float8_e8m0fnu")', True),
        ('hasattr(torch, "_C")', False),
        ('hasattr(x, "relu")', False),
        ('getattr(tl, "sigmoid")', False),
    ],
)
def test_what_a_version_of_a_library_has_may_be_asked(asked, fine):
    assert (found(source(f"return {asked}")) == []) == fine


# Whatever is wrapped around it, a forbidden capability is found.

FORBIDDEN = [
    "torch.add(x, y)",
    "torch.ops.aten.add",
    "torch._C",
    "torch",
    "x.relu()",
    "x._version",
    "x.__class__",
    "x.float()",
    "(x @ y)",
    "open(0)",
    "eval",
    "globals()",
    "__import__",
    "getattr(x, x)",
    "type(x)(y)",
    "pattern(x, y)",
    "fused.__globals__",
    "(i for i in ()).gi_frame",
    "tl.constexpr(x)",
    "typing.get_type_hints(fused)",
    "functools.lru_cache",
    "math.__loader__",
]
WRAPPERS = [
    "({})",
    "[{}]",
    "({},)",
    "{{0: {}}}",
    "{{{}: 0}}",
    "({} if n else None)",
    "(0 if {} else 1)",
    "(lambda: {})()",
    "(lambda a={}: a)()",
    "[{} for _ in (0,)]",
    "[0 for _ in (0,) if {}]",
    "tuple(_ for _ in [{}])",
    'f"{{ {} }}"',
    "max({}, 0)",
    "(not {})",
    "(z := {})",
    "list(*[{}])",
    "dict(**{{0: {}}})",
    "({} and 1)",
    "({} == 1)",
    "(-{})",
    "print(0, end={})",
    "(x, {})[1]",
    "(x, y)[{}]",
    "x[{}:]",
    "functools.partial(list, {})",
    "kernel[(1,)]({})",
    "kernel[{}](x)",
    "kernel[lambda meta: {}](x)",
    "x.view({})",
    "torch.empty({})",
    "str({})",
    '"{{}}".format({})',
    'getattr({}, "shape")',
]
STATEMENTS = [
    "return {}",
    "z = {}",
    "z, *_ = {}, 1",
    "z: int = {}",
    "n = 0\nn += {}",
    "if {}:\n    pass",
    "while {}:\n    break",
    "for _ in [{}]:\n    pass",
    "for _ in ():\n    pass\nelse:\n    {}",
    "assert {}, 0",
    "assert 1, {}",
    "raise ValueError({})",
    "with torch.no_grad():\n    {}",
    "try:\n    {}\nexcept ValueError:\n    pass",
    "try:\n    pass\nexcept ValueError:\n    {}",
    "try:\n    pass\nfinally:\n    {}",
    "def inner(a):\n    return {}",
    "def inner(a={}):\n    return a",
    "def inner(a: ({})):\n    return a",
    "def inner(*a: ({})):\n    return a",
    "def inner(a) -> ({}):\n    return a",
    "@functools.lru_cache({})\ndef inner(a):\n    return a",
    "z = [0]\nz[{}] = 1",
    "del z[{}]",
]
forbidden = st.recursive(
    st.sampled_from(FORBIDDEN),
    lambda inner: st.builds(str.format, st.sampled_from(WRAPPERS), inner),
    max_leaves=4,
)


def parses(text: str) -> bool:
    """Python 3.11 takes no nested quotes in an f-string."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@settings(max_examples=300)
@given(forbidden, st.sampled_from(STATEMENTS), st.booleans())
def test_a_forbidden_capability_is_found_wherever_it_stands(expression, statement, at_module_level):
    text = statement.format(expression)
    assume(not (at_module_level and text == "z = tl.constexpr(x)"))  # there it holds a constant
    if at_module_level and not text.startswith("return"):
        whole = source(
            "return x",
            module=f"{text}\n\nHELD = (inner,)"
            if text.startswith(("def", "@"))
            else f"if 1:\n{textwrap.indent(text, '    ')}",
        )
    else:
        whole = source(text)
    if parses(whole):
        assert found(whole)


# Ordinary host code is never refused.

NUMBERS = st.recursive(
    st.sampled_from(
        ["n", "64", "x.numel()", "x.shape[0]", "x.shape[-1]", "x.dim()", "y.stride(0)", "x.size(-1)",
         "len(x.shape)", "x.element_size()", "x.dtype.itemsize", "math.ceil(1.5)", "int(math.log2(64))",
         "LIMITS.get(4, (1, 1))[0]",
         "torch.finfo(torch.float32).bits", "x.storage_offset()", "x.data_ptr() % 16", "n.bit_length()"]
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "<<"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "triton.cdiv", "pow"]), inner, inner),
        st.builds("triton.next_power_of_2({})".format, inner),
        st.builds("({} if {} > {} else {})".format, inner, inner, inner, inner),
        st.builds("sum({} for i in range(2))".format, inner),
        st.builds("abs({})".format, inner),
    ),
    max_leaves=5,
)  # fmt: skip
TENSORS = st.recursive(
    st.sampled_from(
        ["x", "y", "torch.empty_like(x)", "torch.empty(x.shape, dtype=x.dtype, device=x.device)"]
    ),
    lambda inner: st.builds(
        "{}{}".format,
        inner,
        st.sampled_from(
            [".contiguous()", ".view(-1)", ".reshape(-1, 1)", "[0]", "[..., :1]", ".transpose(0, -1)", ".t()",
             ".unsqueeze(0)", ".expand_as(y)", ".flatten()", ".permute(1, 0)", ".to(y.device)", ".detach()",
             ".T"]
        ),
    ),
    max_leaves=4,
)  # fmt: skip
BENIGN = st.one_of(
    st.builds("z = {}".format, NUMBERS),
    st.builds("n: int = {}".format, NUMBERS),
    st.builds("n += {}".format, NUMBERS),
    st.builds("grid = ({}, {})".format, NUMBERS, NUMBERS),
    st.builds("grid = lambda meta: (triton.cdiv({}, meta['BLOCK']),)".format, NUMBERS),
    st.builds("sizes = [i * {} for i in range(n) if i]".format, NUMBERS),
    st.builds("sizes = {{'a': {}, **{{}}}}".format, NUMBERS),
    st.builds("kernel[({},)](x, y, out, {}, BLOCK=64, num_warps=4)".format, NUMBERS, NUMBERS),
    st.builds("if {} == {}:\n    return out".format, NUMBERS, NUMBERS),
    st.builds("assert {} >= 0, f'{{n}} elements'".format, NUMBERS),
    st.builds("while n > {}:\n    n //= 2".format, NUMBERS),
    st.builds("for start in range(0, n, {}):\n    pass".format, NUMBERS),
    st.builds("if n < 0:\n    raise ValueError(f'n is {{n}}, {{x.shape}}')\nz = {}".format, NUMBERS),
    st.builds("out = {}".format, TENSORS),
    st.builds("x = {} if not x.is_contiguous() else x".format, TENSORS),
    st.builds("pair = [{}, {}]".format, TENSORS, TENSORS),
    st.builds("with torch.no_grad():\n    out = {}".format, TENSORS),
    st.builds(
        "try:\n    out = {}\nexcept RuntimeError as e:\n    raise ValueError(str(e)) from e".format,
        TENSORS,
    ),
    st.builds("def shape_of(a: torch.Tensor, k: int = 0):\n    return a.shape[k], {}".format, NUMBERS),
)


@settings(max_examples=300)
@given(st.lists(BENIGN, min_size=1, max_size=6))
def test_ordinary_host_code_is_never_refused(statements):
    assert (
        found(source("\n".join(["n = x.numel()", "out = torch.empty_like(x)", *statements, "return out"])))
        == []
    )


# Whatever the text, inspection answers.

HONEST = [read_case(path).candidate for path in sorted((HERE / "honest").glob("*.py"))]


@given(st.text())
def test_any_text_is_answered(text):
    assert all(violation.line > 0 and violation.message for violation in found(text, helper=text))


@settings(max_examples=200)
@given(st.sampled_from(HONEST), st.data())
def test_a_torn_candidate_is_answered(candidate, data):
    """An honest candidate with a piece cut out, or doubled."""
    name = data.draw(st.sampled_from(sorted(candidate.files)))
    text = candidate.files[name]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    torn = data.draw(st.sampled_from([text[:start] + text[end:], text[:end] + text[start:]]))
    for violation in inspect(Candidate(candidate.files | {name: torn})):
        assert violation.file in candidate.files
        assert violation.line > 0


FRAMES = "class Plan:\n    def __init__(self):\n        self.gi_frame = self._rows = 1\n\n"
OBJECTS = {
    "its own": ("    def rows(self):\n        return self.gi_frame + self._rows\n", "Plan().rows()", None),
    "one that the module made": ("PLAN = Plan()\n", "PLAN.gi_frame", None),
    "another value": ("", "x.gi_frame", "host_method"),
    "another value's private one": ("", "x._rows", "private_attribute"),
    "one in a list": ("PLANS = [Plan()]\n", "PLANS[0].gi_frame + PLANS[0]._rows", None),
    "a file": ("PLAN = Plan()\n", "torch.gi_frame", "host_name"),
    "of a class in a block": (
        "if LIMITS:\n    class Other:\n        def rows(self):\n            return self.gi_frame\n",
        "Other.rows(x)",
        "host_method",
    ),
    "Python's own": (
        "    def rows(self):\n        return self.__dict__\n",
        "Plan().rows()",
        "private_attribute",
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_that_the_text_shows_may_have_attributes_of_any_name(name):
    module, returned, rule = OBJECTS[name]
    refused = rules(source(f"return {returned}", module=FRAMES + module))
    assert (rule in refused) if rule else not refused


def test_a_method_is_for_objects_of_its_class(tmp_path):
    """Where it names what other values have too: called with another value it does nothing."""
    module = FRAMES + "    def rows(self):\n        return self.gi_frame\n"
    candidate = Candidate({"fuse.py": source("return Plan.rows(x)", module), MANIFEST: '["fuse"]'})
    assert inspect(candidate) == []
    [loaded] = load_passes(candidate, tmp_path)
    with pytest.raises(AttributeError, match="__own_object__"):
        loaded.replacement_func((i for i in range(3)), 1)


REGISTERED = """
@torch.library.custom_op("own::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return {0}


@double.register_fake
def _(x):
    return torch.sin(x)


@torch.library.register_fake("own::double")
def fake(x):
    return torch.sin(x)
"""


@pytest.mark.parametrize(
    "called", ["double(x)", "torch.ops.own.double(x)", "torch.ops.own.double.default(x)"]
)
def test_a_registered_operator_is_its_function(called):
    fine, wrong = (REGISTERED.format(value) for value in ("torch.empty_like(x)", "torch.sin(x)"))
    assert found(source(f"return {called}", module=fine)) == []
    assert [v.rule for v in found(source(f"return {called}", module=wrong))] == ["host_name"]


@pytest.mark.parametrize(
    "call", ["torch.ops.aten.relu(x)", "torch.ops.own.other(x)", 'torch.library.custom_op("own::f", double)']
)
def test_an_operator_that_is_not_the_candidate_s_is_refused(call):
    [violation] = found(source(f"return {call}", module=REGISTERED.format("x")))
    assert "return a plain function" in violation.message


LIBRARY = """
LIB = torch.library.Library("own", "DEF")
LIB.define("double(Tensor x) -> Tensor")


def double(x):
    return {0}


def fake(x):
    return torch.sin(x)


LIB.impl("double", double, "CUDA")
LIB.impl("double", fake, "Meta")
"""


def test_an_operator_of_a_library_is_its_function():
    fine, wrong = (LIBRARY.format(value) for value in ("torch.empty_like(x)", "torch.sin(x)"))
    assert found(source("return torch.ops.own.double(x)", module=fine)) == []
    assert rules(source("return torch.ops.own.double(x)", module=wrong)) == {"host_name"}
    assert rules(source("return torch.ops.own.other(x)", module=fine)) == {"host_name"}


GENERATORS = {
    "values": ("for i in range(2):\n        yield i\n    yield from (5, 6)", None),
    "returns": ("if LIMITS:\n        return\n    yield 1", None),
    "a value that is sent": ("n = yield 1\n    yield n", "statement"),
    "no end": ("while True:\n        yield 1", "statement"),
    "a tensor's operator": ("yield torch.sin(1)", "host_name"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_is_a_list(name):
    body, rule = GENERATORS[name]
    module = f"def sizes():\n    {body}\n"
    refused = {v.rule for v in found(source("return [n for n in sizes()]", module=module))}
    assert refused == ({rule} if rule else set())


@pytest.mark.parametrize(("function", "fine"), [("guard", True), ("either", True), ("other", False)])
def test_a_context_may_come_from_a_function(function, fine):
    module = (
        "def guard(x):\n    return torch.cuda.device(x.device)\n\n\n"
        "def either(x):\n    given = torch.no_grad() if x else torch.cuda.device(0)\n    return given\n\n\n"
        "def other(x):\n    if LIMITS:\n        return torch.no_grad()\n    return x\n"
    )
    text = source(f"with {function}(x):\n        return x", module=module)
    assert (found(text) == []) == fine


ONCE = "COUNT = {}\n\n\ndef count(x):\n    global COUNT\n    if {}:\n        COUNT = {}\n{}    return COUNT\n"
TOLD_WHAT_TO_WRITE = {
    "a flag of torch": (
        source("return torch.empty_like(x)", "torch.backends.cuda.matmul.allow_tf32 = True"),
        "`torch.backends.cuda.matmul.allow_tf32` is a flag of the process; delete this line",
        source("return torch.empty_like(x)"),
    ),
    "a flag of torch in a function": (
        source("torch.backends.cudnn.benchmark = True\nreturn torch.empty_like(x)"),
        "input_precision",
        source("return torch.empty_like(x)"),
    ),
    "the precision of products": (
        source("return torch.empty_like(x)", 'torch.set_float32_matmul_precision("high")'),
        "delete this line",
        source("return torch.empty_like(x)"),
    ),
    "a setting of Triton": (
        source("return torch.empty_like(x)", "triton.knobs.compilation.always_compile = True"),
        "delete this line: a pass has no settings of Triton's",
        source("return torch.empty_like(x)"),
    ),
    "a setting of Triton by import": (
        source("return torch.empty_like(x)", "from triton import knobs\nDEBUG = knobs.runtime.debug"),
        "delete this line",
        source("return torch.empty_like(x)"),
    ),
    "a namespace": (
        source("return x[: CONFIG.block]", "import types\nCONFIG = types.SimpleNamespace(block=64)"),
        "write a dataclass at the top of the file instead: `@dataclasses.dataclass(frozen=True)`",
        source(
            "return x[: Config().block]",
            "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config:\n    block: int = 64",
        ),
    ),
    "a class in a class": (
        source("return x[: Outer.Inner.N]", "class Outer:\n    M = 2\n    class Inner:\n        N = 4"),
        "move `class Inner` to the top of the file",
        source("return x[: Inner.N]", "class Inner:\n    N = 4"),
    ),
    "a class in a function": (
        source("class Local:\n    N = 4\nreturn x[: Local.N]"),
        "move `class Local` to the top of the file",
        source("return x[: Local.N]", "class Local:\n    N = 4"),
    ),
}


@pytest.mark.parametrize("name", TOLD_WHAT_TO_WRITE)
def test_an_author_is_told_what_to_write_instead(name):
    """Settings of libraries, namespaces and nested classes: one line that helps, and following it helps."""
    text, told, instead = TOLD_WHAT_TO_WRITE[name]
    assert any(told in violation.message for violation in found(text)), found(text)
    assert found(instead) == []


FOUND_ONCE = {
    "a global": (ONCE.format("None", "COUNT is None", "torch.cuda.device_count()", ""), None),
    "a global that is false": (ONCE.format("None", "not COUNT", "len(x.shape)", ""), None),
    "a count": (ONCE.format("0", "not COUNT", "1", ""), "statement"),
    "of another": (ONCE.format("None", "LIMITS is None", "1", ""), "statement"),
    "and again": (ONCE.format("None", "COUNT is None", "1", "    COUNT += 1\n"), "statement"),
    "a tensor": (ONCE.format("None", "COUNT is None", "torch.empty(4)", ""), "kept_tensor"),
    "what computes": (ONCE.format("None", "COUNT is None", "torch.sin", ""), "host_name"),
}
MAKER = "class Plan:\n    def __init__(self):\n        self.rows = None\n\n    def count(self, x):\n"
ASKED = "        if {0}.rows is None:\n            {0}.rows = {1}\n        return self.rows\n\n"
ASKED += "count = Plan().count\n"
FOUND_ONCE |= {
    "an attribute": (MAKER + ASKED.format("self", "len(x.shape)"), None),
    "an attribute of a tensor": (MAKER + ASKED.format("x", "1"), "attribute_store"),
    "an attribute that is a tensor": (MAKER + ASKED.format("self", "torch.empty(4)"), "kept_tensor"),
    "an attribute again": (MAKER + "        self.rows = 1\n\ncount = Plan().count\n", "attribute_store"),
}


@pytest.mark.parametrize("name", FOUND_ONCE)
def test_a_number_may_be_found_out_once(name):
    module, rule = FOUND_ONCE[name]
    assert rules(source("return x.view(count(x))", module=module)) == ({rule} if rule else set())


FROZEN = (
    "from dataclasses import dataclass\nHELD = LIMITS\n\n\n@dataclass(frozen=True)\n"
    "class A:\n    rows: int = 1\n\n"
    "    def __post_init__(self):\n        object.__setattr__({}, '{}', 2)\n\n\nMADE = A()\n"
)
HABITS = {
    "environment": ("import os\nFAST = os.getenv('FAST', '0') == '1' or os.environ.get('FAST')\n", None),
    "environment by a name": ("import os\nFAST = os.getenv(str(LIMITS))\n", "host_name"),
    "environment that is set": ("import os\nos.environ['FAST'] = '1'\nFAST = 'FAST' in os.environ\n", None),
    "environment as a whole": ("import os\nHELD = os.environ\n", "import"),
    "seed": ("torch.manual_seed(0)\n", None),
    "random numbers": ("HELD = torch.rand(4)\n", "host_name"),
    "slots": (
        "class A:\n    __slots__ = ('rows',)\n\n    def __init__(self):\n        self.rows = 1\n\nMADE = A()",
        None,
    ),
    "frozen": (f"{FROZEN.format('self', 'rows')}", None),
    "frozen, another's": (f"{FROZEN.format('HELD', 'rows')}", "private_attribute"),
    "frozen, another name": (f"{FROZEN.format('self', '__class__')}", "private_attribute"),
    "order": (
        "@functools.total_ordering\nclass A:\n    def __lt__(self, other):\n        return 1\n\nMADE = A()",
        None,
    ),
    "binary search": ("import bisect\nHELD = bisect.bisect_left([1, 2], 1)\n", None),
    "sorted insertion": ("import bisect\nHELD = bisect.insort\n", "host_name"),
    "version": ("import sys\nassert sys.version_info >= (3, 8)\n", None),
    "modules": ("import sys\nHELD = sys.modules\n", "import"),
    "logging": ("import logging\nlogging.basicConfig(level=logging.INFO)\n", None),
    "compiler": ("@torch.compiler.disable\ndef f(x):\n    return x\nHELD = f\n", None),
    "compiled": ("@torch.compile\ndef f(x):\n    return x\nHELD = f\n", "decorator"),
    "math for libdevice": ("try:\n    import a\nexcept ImportError:\n    libdevice = tl.math\n", "import"),
    "torch for libdevice": ("libdevice = torch\n", "host_name"),
    "template": ("TEXT = 'int n = {n};'\nHELD = TEXT.format(n=1)\n", None),
    "template of attributes": ("TEXT = '{n.__class__}'\nHELD = TEXT.format(n=1)\n", "host_method"),
    "template that changes": ("TEXT = '{n}'\nTEXT = '{n.real}'\nHELD = TEXT.format(n=1)\n", "host_method"),
    "template of the class above": (
        "import enum\n\nclass Own:\n    format = _own = 1\n\nclass F(str, enum.Enum):\n    A = '{0.x}'\n"
        "    def show(self):\n        return super().format(self._own)\n\nHELD = F.A.show(), Own\n",
        "host_method",
    ),
    "type among others": ("HELD = type(1) in (int, float), type(1) is int\n", None),
    "type among names": ("KINDS = (int, float)\nHELD = type(1) in KINDS\n", None),
    "type in an object": ("class A:\n    X = 1\n\nHELD = type(1) in A()\n", "builtin"),
    "type before an object": ("class A:\n    X = 1\n\nHELD = type(1) < A()\n", "builtin"),
    "special name held": (
        "def f(x):\n    return x\n\nclass A:\n    __eq__ = staticmethod(f)\n\nHELD = A()\n",
        "private_attribute",
    ),
    "name of a class": (
        "class A:\n    def __call__(self):\n        return self.__class__.__name__\n\nHELD = A()()\n",
        None,
    ),
    "class of an object": (
        "class A:\n    def __call__(self):\n        return self.__class__\n\nHELD = A()()\n",
        "private_attribute",
    ),
    "method as a function": ("HELD = torch.Tensor.contiguous\n", None),
    "method that computes": ("HELD = torch.Tensor.add\n", "host_name"),
}


@pytest.mark.parametrize("name", HABITS)
def test_a_habit_is_told_from_what_looks_like_it(name):
    module, rule = HABITS[name]
    refused = rules(source("return x", module=module))
    assert (rule in refused) if rule else not refused


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_refusal_names_only_what_works_on_the_target(device):
    """Of every attack of the suite; what a message quotes of the candidate stands in backticks."""
    target = target_of(device)
    told = 0
    for path in sorted((HERE / "adversarial").glob("*.py")):
        for violation in inspect(read_case(path).candidate, target=target):
            message = re.sub(r"`[^`]*`", "", violation.message)
            message = message.replace("Triton is of no use on the cpu target, ", "")
            if violation.rule.startswith(("cpp_", "cuda_")):  # of a C++ or CUDA source that is there
                continue
            told += 1
            assert target.foreign.search(message.replace(f"the {target.name} target", "")) is None, message
    assert told > 100
