"""What a candidate's modules hold between calls is found wherever it is hidden; constants may stay."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import triton
import triton.language as tl

from passagent.evaluator.guards.kept import Kept, held_tensors

HEAD = (
    "import functools\nimport itertools\nimport torch\nfrom pass_dir_under_test_helper import KEPT as FAR\n"
)
HIDING = {
    "list": "KEPT = []\ndef call(x):\n    KEPT.append(x * 2)",
    "replaced every time": "KEPT = [None]\ndef call(x):\n    KEPT[0] = x * 2",
    "dict in a tuple": "KEPT = ({},)\ndef call(x):\n    KEPT[0][x.shape] = x * 2",
    "loop variable": "KEPT = []\ndef call(x):\n    for kept in (KEPT,):\n        kept += [x * 2]",
    "default argument": "def call(x, kept=[]):\n    kept.append(x * 2)",
    "function attribute": "def call(x):\n    call.kept = x * 2",
    "global": "KEPT = None\ndef call(x):\n    global KEPT\n    KEPT = x * 2",
    "closure": "def make():\n    kept = []\n    def inner(x):\n        kept.append(x * 2)\n    return inner\n"
    "call = make()",
    "lru_cache": "@functools.lru_cache\ndef memo(x):\n    return x * 2\ndef call(x):\n    memo(x)",
    "enumeration": "import enum\nclass Mode(enum.Enum):\n    ROWS = []\n"
    "def call(x):\n    Mode.ROWS.value.append(x * 2)",
    "partial": "def put(kept, x):\n    kept.append(x * 2)\ncall = functools.partial(put, [])",
    "generator": "def hold():\n    kept = []\n    while True:\n        x = yield\n        kept.append(x)\n"
    "HOLD = hold()\nnext(HOLD)\ndef call(x):\n    HOLD.send(x * 2)",
    "iterator": "LISTS = []\nITERATOR = itertools.cycle(LISTS)\ndef call(x):\n    LISTS.append(x * 2)",
    "class": "class Space:\n    pass\ndef call(x):\n    Space.kept = x * 2",
    "instance": "class Space:\n    pass\nSPACE = Space()\ndef call(x):\n    SPACE.kept = x * 2",
    "view of a buffer": "BUFFER = torch.zeros(64)\ndef call(x):\n    BUFFER[: x.numel()].copy_(x.view(-1))",
    "table written over": "TABLE = torch.tensor([1.0, 2.0, 3.0, 4.0])\ndef call(x):\n    TABLE.copy_(x)",
    "beside a view": "VIEW = torch.zeros(64)[:1]\n"
    "def call(x):\n    VIEW.as_strided((4,), (1,), 8).copy_(x.view(-1))",
    "helper module": "def call(x):\n    FAR.append(x * 2)",
}
HARMLESS = {
    "nothing": "def call(x):\n    return x * 2",
    "equal plans anew": "import math\nPLANS = {}\nLAST = [None]\ndef call(x):\n"
    "    PLANS[x.shape] = LAST[0] = (x.numel() * 1000, [x.shape, x.device, x.dtype], range(4), math.pi)",
    "a launcher anew": "import functools\nLAST = [None, None]\ndef launch(n, x):\n    return n\n"
    "def call(x):\n    n = x.numel()\n    LAST[:] = functools.partial(launch, n), lambda y: n",
    "plans": "PLANS = {}\ndef call(x):\n    PLANS[x.shape, x.dtype] = (x.numel(), (1, 2), 'plan')",
    "table": "TABLE = torch.tensor([1.0, 2.0])\ndef call(x):\n    return x * TABLE[0]",
    "table made at the first call": "@functools.cache\ndef table(d):\n    return torch.tensor([1.0, 2.0])\n"
    "def call(x):\n    return x * table(x.device)[0]",
    "records": "class Sizes:\n    PLANS = {}\ndef call(x):\n    Sizes.PLANS[x.shape] = x.numel()",
    "others' objects": "SIZES = (len, torch.float32)\nWRAPPED = torch.no_grad()(lambda x: x)\n"
    "def call(x):\n    return WRAPPED(x)",
    "plans in the answer of a cache": "@functools.cache\ndef plans():\n    return {}\n"
    "def call(x):\n    plans()[x.shape] = [x.numel()]",
    "plans that a small cache forgets": "@functools.lru_cache(maxsize=1)\ndef plan(n):\n    return [n]\n"
    "def call(x):\n    plan(1)\n    plan(x.numel())",
    "cached plan": "@functools.cache\ndef plan(n):\n    return n + 1\ndef call(x):\n    plan(x.numel())",
    "cached plans that are forgotten": "@functools.lru_cache(maxsize=2)\ndef plan(n):\n    return [n]\n"
    "def call(x):\n    for n in (3, 1, 2, 1):\n        plan(n)",
    "cached plan in a table": "@functools.lru_cache\ndef plan(n):\n    return {n: [n]}\nPLANS = {}\n"
    "def call(x):\n    for n in (1, 2, 1):\n        PLANS[n] = plan(n)",
}


@triton.jit
def copy(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + n, tl.load(x_ptr + tl.arange(0, BLOCK)))


@pytest.fixture
def load(monkeypatch):
    def load(text: str):
        monkeypatch.setitem(sys.modules, "kernel_under_test", sys.modules[__name__])
        for name, source in {"pass_dir_under_test_helper": "KEPT = []", "held.P": HEAD + text}.items():
            module = types.ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(source, name, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, "held.helper", sys.modules["pass_dir_under_test_helper"])
        return sys.modules["held.P"].call

    return load


def after_calls(call):
    kept = Kept("held")
    for value in (1.0, 2.0):
        call(torch.full((4,), value))
    kept.remember()
    for value in (3.0, 4.0):
        call(torch.full((4,), value))
    return kept.changed()


@pytest.mark.parametrize("name", HIDING)
def test_a_tensor_that_is_kept_is_found(name, load):
    found = after_calls(load(HIDING[name]))
    assert {(violation.rule, violation.file) for violation in found} <= {
        ("kept_tensor", "P.py"),
        ("kept_tensor", "helper.py"),
    }
    assert found


@pytest.mark.parametrize("name", HARMLESS)
def test_plans_and_constants_may_stay(name, load):
    assert after_calls(load(HARMLESS[name])) == []


def test_the_walk_stays_with_the_candidate(load):
    load("import torch as library\nfrom torch.nn import functional as F\ndef call(x):\n    return x")
    assert list(held_tensors("held")) == []


COUNTING = {
    "answer of a cache": "@functools.lru_cache\ndef plan(n):\n    return [n]\ndef put(kept):\n"
    "    kept.append(0)\ndef call(x):\n    put(plan(8))",
    "answer of a cache without bounds": "@functools.cache\ndef plan(n):\n    return {}\ndef put(kept):\n"
    "    kept[len(kept)] = 0\ndef call(x):\n    put(plan(8))",
    "inside the answer of a small cache": "@functools.lru_cache(maxsize=1)\ndef plan(n):\n"
    "    return (n, [])\ndef put(kept):\n    kept[1].append(0)\ndef call(x):\n    put(plan(8))",
    "list": "KEPT = []\ndef call(x):\n    KEPT.append(0)",
    "two dicts": "A, B = {}, {}\ndef call(x):\n    A[0] = B.get(0, 0) + 1\n    B[0] = A[0]",
    "addresses": "SEEN = {}\ndef call(x):\n    SEEN[x.data_ptr()] = True",
    "cache of addresses": "@functools.cache\ndef plan(n):\n    return n\n"
    "def call(x):\n    plan(x.data_ptr())",
    "list of a cached function": "@functools.cache\ndef box():\n    return []\n"
    "def call(x):\n    box().append(0)",
    "last address of a cache": "@functools.lru_cache(maxsize=1)\ndef plan(n):\n    return n\n"
    "def call(x):\n    plan(x.data_ptr())",
    "missing keys": "import collections\nSEEN = collections.defaultdict(int)\n"
    "def call(x):\n    SEEN[len(SEEN)]",
    "order of a dict": "import collections\nORDER = collections.OrderedDict.fromkeys(range(9))\n"
    "def call(x):\n    first = next(iter(ORDER))\n    ORDER.pop(first)\n    ORDER[first] = None",
    "context": "import contextlib\nBOX = contextlib.nullcontext([])\n"
    "def call(x):\n    with BOX as box:\n        box.append(0)",
    "metadata of a field": "import dataclasses\nFIELD = dataclasses.field(metadata={0: []})\n"
    "def call(x):\n    FIELD.metadata[0].append(0)",
    "closure": "def make():\n    n = [0]\n    def inner(x):\n        n[0] += 1\n    return inner\n"
    "call = make()",
    "helper module": "def call(x):\n    FAR.append(1)",
    "class": "class Sizes:\n    SEEN = []\ndef call(x):\n    Sizes.SEEN.append(0)",
    "instance": "class Sizes:\n    pass\nSIZES = Sizes()\nSIZES.seen = []\n"
    "def call(x):\n    SIZES.seen.append(0)",
    "enumeration": "import enum\nclass Mode(enum.Enum):\n    ROWS = []\n"
    "def call(x):\n    Mode.ROWS.value.append(0)",
    "number that holds a list": "import enum\nclass Mode(int, enum.Enum):\n    ROWS = 1\n"
    "    def __init__(self, n):\n        self.seen = []\ndef call(x):\n    Mode.ROWS.seen.append(0)",
    "members that look alike": "import enum\nclass Mode(str, enum.Enum):\n    A = 'a'\n    B = 'b'\n"
    "    def __repr__(self):\n        return ''\nNOW = [Mode.A]\n"
    "def call(x):\n    NOW[0] = Mode.B if NOW[0] is Mode.A else Mode.A",
    "partial": "def put(kept, x):\n    kept.append(0)\nPUT = functools.partial(put, [])\n"
    "def call(x):\n    PUT(x)",
    "view of a dict": "VIEW = {0: []}.values()\ndef call(x):\n    for kept in VIEW:\n        kept.append(0)",
    "bound methods": "PUT, COUNT = (lambda kept: (kept.append, kept.count))([])\n"
    "def call(x):\n    PUT(COUNT(0))",
    "iterator": "STEPS = iter(range(1000))\ndef call(x):\n    next(STEPS)",
    "slice": "SLICE = slice([], 1)\ndef call(x):\n    SLICE.start.append(0)",
    "configuration": "import triton\nCONFIG = triton.Config({'BLOCK': 64})\n"
    "def call(x):\n    CONFIG.kwargs[len(CONFIG.kwargs)] = 0",
    "configurations of an autotuner": "import triton\n"
    "from kernel_under_test import copy\n"
    "KERNEL = triton.autotune([triton.Config({'BLOCK': 64})], ['n'])(copy)\n"
    "def call(x):\n    KERNEL.configs[0].kwargs[len(KERNEL.configs[0].kwargs)] = 0",
    "heuristics": "import triton\nfrom kernel_under_test import copy\n"
    "KERNEL = triton.heuristics({'BLOCK': len, 'n': len})(copy)\n"
    "def call(x):\n    KERNEL.values[len(KERNEL.values)] = len",
    "tensor descriptor": "from triton.tools.tensor_descriptor import TensorDescriptor\n"
    "TABLE = TensorDescriptor(torch.ones(1, 4), [1, 4], [4, 1], [1, 4])\n"
    "def call(x):\n    TABLE.block_shape.append(1)",
    "where a set pops": "SLOTS = set(range(9))\ndef call(x):\n    SLOTS.add(SLOTS.pop())",
    "one of two equal lists": "ALL = [[0], [0]]\nNOW = [ALL[0]]\n"
    "def call(x):\n    NOW[0] = ALL[1] if NOW[0] is ALL[0] else ALL[0]",
    "one of two equal numbers": "BIG = 100000\nNOW = [BIG]\n"
    "def call(x):\n    NOW[0] = int('100000') if NOW[0] is BIG else BIG",
    "a number of the code's": "NOW = [int('100000')]\n"
    "def call(x):\n    big = 100000\n    NOW[0] = int('100000') if NOW[0] is big else big",
    "one of two equal answers": "@functools.cache\ndef box(n):\n    return [0]\nNOW = [box(1)]\n"
    "def call(x):\n    NOW[0] = box(1) if NOW[0] is box(2) else box(2)",
    "order of a small cache": "HERE = []\n@functools.lru_cache(maxsize=2)\ndef plan(n):\n"
    "    HERE.append(n)\n    return n\ndef call(x):\n    plan(3)\n    HERE.clear()\n    plan(1)\n"
    "    plan(2)\n    plan(1 if 1 in HERE else 2)\n    HERE.clear()",
    "loggers with names of its own": "import enum\nimport logging\n"
    "Name = enum.Enum('Name', {f'N{i}': f'held{i}.rows' for i in range(99)}, type=str)\n"
    "def call(x):\n    known = logging.root.manager.loggerDict\n"
    "    logging.getLogger(next(name for name in Name if name not in known))",
    "dtype": "NOW = [torch.int8]\ndef call(x):\n"
    "    NOW[0] = torch.int16 if NOW[0] == torch.int8 else torch.int8",
    "shape": "NOW = [torch.Size([1])]\ndef call(x):\n    NOW[0] = torch.Size([NOW[0][0] + 1])",
    "device": "NOW = [torch.device('cuda:0')]\n"
    "def call(x):\n    NOW[0] = torch.device(f'cuda:{NOW[0].index + 1}')",
    "beginning of a range": "NOW = [range(1, 2)]\n"
    "def call(x):\n    NOW[0] = range(NOW[0][0] + 1, NOW[0][0] + 2)",
    "built-in function": "import math\nNOW = [math.floor]\n"
    "def call(x):\n    NOW[0] = math.ceil if NOW[0](0.5) == 0 else math.floor",
    "function of one name": "def make(n):\n    if n:\n        def f():\n            return 1\n    else:\n"
    "        def f():\n            return 1 + 1\n    return f\nNOW = [make(0)]\n"
    "def call(x):\n    NOW[0] = make(NOW[0]() == 2)",
    "stride of a view": "ZEROS = torch.tensor([0.0] * 99)\nNOW = [ZEROS.as_strided((2,), (1,))]\n"
    "def call(x):\n    NOW[0] = ZEROS.as_strided((2,), (NOW[0].stride(0) + 1,))",
    "last configuration of an autotuner": "import triton\nfrom kernel_under_test import copy\n"
    "ALL = [triton.Config({'BLOCK': n}) for n in (64, 128)]\n"
    "KERNEL = triton.autotune(ALL, ['n'])(copy)\nKERNEL.best_config = ALL[0]\n"
    "def call(x):\n    KERNEL.best_config = ALL[KERNEL.best_config is ALL[0]]",
    "default of a lambda": "TABLE = {0: lambda x, kept=[]: kept.append(0)}\ndef call(x):\n    TABLE[0](x)",
}


@pytest.mark.parametrize("name", COUNTING)
def test_what_counts_calls_is_found(load, name):
    assert [v.rule for v in after_further_calls(load(COUNTING[name]))][:1] == ["call_state"]


@pytest.mark.long
def test_what_hides_among_too_many_objects_is_refused(load):
    call = load("HAY = [[i] for i in range(250_000)]\nKEPT = []\ndef call(x):\n    KEPT.append(x)")
    assert {v.rule for v in after_calls(call)} == {"call_state"}
    assert {v.rule for v in after_further_calls(call)} == {"call_state"}


@pytest.mark.parametrize("name", HARMLESS)
def test_plans_are_made_once(load, name):
    assert after_further_calls(load(HARMLESS[name])) == []


def test_a_plan_that_was_forgotten_meanwhile_may_be_made_again(load):
    call = load("PLANS = {}\ndef call(x):\n    PLANS.clear()\n    PLANS[x.shape] = x.numel()")
    kept = Kept("held")
    for size in (3, 4, 3):
        call(torch.ones(size))
        kept.settle(str(size))
        call(torch.ones(size))
        assert kept.changed() == []


def test_what_is_as_it_was_after_two_calls_is_seen_after_one(load):
    call = load("TURN = [0, 1]\ndef call(x):\n    TURN.reverse()")
    kept, x = Kept("held"), torch.ones(8)
    call(x)
    kept.settle("graph")
    call(x)
    call(x)
    assert kept.changed() == []
    kept.note()
    call(x)
    assert [violation.rule for violation in kept.changed()] == ["call_state"]


def after_further_calls(call):
    kept = Kept("held")
    first, *held = [torch.ones(8) for _ in range(4)]  # all alive, at addresses of their own
    call(first)
    kept.remember()
    kept.settle("graph")
    for x in held:
        call(x)
        kept.settle("graph")
    return kept.changed()
