"""Candidates loaded from files and applied to captured graphs: results, effects, errors."""

import copy
import json
import operator
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from passagent.evaluator.matching.loaded_passes import LoadedPass, PassLoadError, load_passes
from passagent.evaluator.matching.matcher import match_at
from passagent.evaluator.matching.rewrite import apply_passes, arguments_of, checked, replace_match
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.tasks.capture import capture

X, Y = torch.linspace(-2, 2, 32).reshape(4, 8), torch.linspace(1, 3, 32).reshape(4, 8)


def source(
    pattern: str, parameters: str, fused: str, args: str | None = None, takes: str | None = None
) -> str:
    """A pass: bodies of pattern and fused, the arguments handed over (default: the parameters)."""
    indented = ["\n".join(f"    {line}" for line in body.split("\n")) for body in (pattern, fused)]
    args = args if args is not None else (f"{parameters}," if parameters else "")
    return (
        f"import torch\nimport torch.nn.functional as F\n\n\ndef pattern({parameters}):\n{indented[0]}\n\n\n"
        f"def replacement_args({parameters}):\n    return ({args})\n\n\n"
        f"@torch.fx.wrap\ndef fused({takes if takes is not None else parameters}):\n{indented[1]}\n\n\n"
        "def replacement_func():\n    return fused\n"
    )


def candidate(*texts: str, **helpers: str) -> Candidate:
    files = {f"P{i}.py": text for i, text in enumerate(texts)}
    files |= {f"{name}.py": text for name, text in helpers.items()}
    return Candidate({**files, MANIFEST: json.dumps([f"P{i}" for i in range(len(texts))])})


def load(tmp_path, *texts: str, **helpers: str):
    """Passes of which each has a function of its own."""
    return [
        replace(load_passes(candidate(text, **helpers), tmp_path / str(i))[0], name=f"P{i}", file=f"P{i}.py")
        for i, text in enumerate(texts)
    ]


def captured(function, *inputs):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return capture(Module(), list(inputs))


def check(tmp_path, function, *texts: str, inputs=(X, Y), expected: list[str] | None = None):
    """Apply the passes; the rewritten graph gives what the function gives, inputs included. The rewritten."""
    graph = captured(function, *[value.clone() for value in inputs])
    passes, again = load(tmp_path, *texts), copy.deepcopy(graph.graph_module.graph)
    rewritten = apply_passes(graph.graph_module, passes)
    for name, place in zip(rewritten.applied, rewritten.places, strict=True):  # the same without a search
        (loaded,) = [loaded for loaded in passes if loaded.name == name]
        matched = match_at(loaded.pattern_graph, again, place)
        replace_match(again, loaded, matched, loaded.replacement_func, arguments_of(loaded, matched))
    assert str(again) == str(rewritten.graph_module.graph)
    ours, theirs = ([value.clone() for value in inputs] for _ in range(2))
    results = rewritten.graph_module(*[ours[i] for i in graph.order])
    reference = function(*theirs)
    reference = reference if isinstance(reference, tuple) else (reference,)
    assert len(results) == len(reference)
    for a, b in zip([*results, *ours], [*reference, *theirs], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert rewritten.applied == (expected if expected is not None else ["P0"])
    return rewritten


def targets(rewritten) -> list:
    return [n.target for n in rewritten.graph_module.graph.nodes if n.op in ("call_function", "call_method")]


def test_single_output(tmp_path):
    text = source("return torch.relu(x + y)", "x, y", "return torch.relu(x + y)")
    done = check(tmp_path, lambda x, y: torch.relu(x + y) * 2, text)
    assert [target.__name__ for target in targets(done)] == ["fused", "mul"]


def test_several_outputs_in_any_order(tmp_path):
    text = source("a = x + y\nreturn torch.relu(a), a", "x, y", "return torch.relu(x + y), x + y")
    done = check(tmp_path, lambda x, y: ((x + y) * 2, torch.relu(x + y)), text)
    assert targets(done)[:2] == [operator.add, operator.mul]  # the other addition is what relu takes

    def function(x, y):
        a = x + y
        return a * 2, torch.relu(a)

    done = check(tmp_path, function, text)
    assert operator.getitem in targets(done)


@pytest.mark.parametrize("returned", ["(x + y,)", "x + y"])
def test_pattern_that_returns_a_1_tuple(tmp_path, returned):
    text = source("return (x + y,)", "x, y", f"return {returned}")
    check(tmp_path, lambda x, y: torch.relu(x + y), text)


def test_output_of_a_call_is_covered_by_a_later_pass(tmp_path):
    two = source("a = x + y\nreturn a, a * 2", "x, y", "return x + y, (x + y) * 2")
    item = source("return t[1]", "t", "return t[1]")

    def function(x, y):
        a = x + y
        return a * y, a * 2

    done = check(tmp_path, function, two, item, expected=["P0", "P1"])
    assert done.places == [("a", "mul_1"), ("call_output_1",)]


def test_unused_output_needs_no_node(tmp_path):
    text = source(
        "a, b = x.chunk(2, -1)\nreturn a * s, b * s", "x, s", "return [p * s for p in x.chunk(2, -1)]"
    )

    def function(x, y):
        a, b = x.chunk(2, -1)
        _ = b * 2.0
        return a * 2.0, b * 2.0

    check(tmp_path, lambda x, y: tuple(p * 2.0 for p in x.chunk(2, -1)), text)
    assert check(tmp_path, function, text, expected=[]).mismatches


def test_every_match_is_replaced(tmp_path):
    text = source("return torch.relu(x) * 2", "x", "return torch.relu(x) * 2")

    def function(x, y):
        for _ in range(3):
            x = torch.relu(x) * 2 - y
        return x

    check(tmp_path, function, text, expected=["P0"] * 3)


def test_priority_follows_the_manifest(tmp_path):
    short = source("return torch.relu(x)", "x", "return torch.relu(x)")
    long = source("return torch.relu(x) + y", "x, y", "return torch.relu(x) + y")
    done = check(tmp_path, lambda x, y: torch.relu(x) + y, long, short)
    assert [mismatch.pass_name for mismatch in done.mismatches] == ["P1"]
    done = check(tmp_path, lambda x, y: torch.relu(x) + y, short, long)
    assert [mismatch.pass_name for mismatch in done.mismatches] == ["P1"]


def test_a_later_pass_sees_the_earlier_ones_result(tmp_path):
    first = source("return torch.relu(x) * 2", "x", "return torch.relu(x) * 2")
    second = source("return torch.tanh(x) + 1", "x", "return torch.tanh(x) + 1")
    check(tmp_path, lambda x, y: torch.tanh(torch.relu(x) * 2) + 1, first, second, expected=["P0", "P1"])


def test_arguments_are_permuted_dropped_and_extended(tmp_path):
    text = source(
        "return F.softmax(x * s, d)", "x, s, d", "assert route == 'a' and k == 7\nreturn F.softmax(x * s, d)",
        args="d, x, s, 'a', 7, torch.float32, (1, None)", takes="d, x, s, route, k, dtype, pair",
    )  # fmt: skip
    check(tmp_path, lambda x, y: torch.softmax(x, 0) + torch.nn.functional.softmax(y * 0.5, -1), text)


def test_list_bound_to_a_parameter(tmp_path):
    text = source("return torch.cat(parts, d)", "parts, d", "return torch.cat(parts, d)")
    check(tmp_path, lambda x, y: torch.cat([x, y, x], 1), text)


def test_operators_that_follow_are_moved_behind(tmp_path):
    text = source("return torch.relu(x), torch.exp(x)", "x", "return torch.relu(x), torch.exp(x)")

    def function(x, y):
        a = torch.relu(x)
        b = torch.tanh(a) + 1
        return b, torch.exp(x), a

    check(tmp_path, function, text)


def test_in_place_operators_keep_their_effect_and_order(tmp_path):
    text = source("x += y\nz = F.relu(x, inplace=True)\nreturn z, x", "x, y", "x += y\nreturn x.relu_(), x")

    def function(x, y):
        before = x * 3
        x += y
        out = torch.nn.functional.relu(x, inplace=True)
        return out * 2, before, x + 1

    check(tmp_path, function, text)


def test_written_parameter_that_the_pattern_returns(tmp_path):
    text = source("x[:, 1:3] = y[:, 1:3]\nreturn x", "x, y", "x = x.clone()\nx[:, 1:3] = y[:, 1:3]\nreturn x")

    def function(x, y):
        z = x * 2
        before = z + 1
        z[:, 1:3] = y[:, 1:3]
        return before, z + 1, z

    check(tmp_path, function, text)


def test_store_that_nobody_reads_is_kept_for_its_effect(tmp_path):
    text = source("return torch.relu(y)", "y", "return torch.relu(y)")

    def function(x, y):
        x[0] = 5.0
        return torch.relu(y)

    check(tmp_path, function, text)


def test_only_what_the_match_alone_used_is_removed(tmp_path):
    text = source("return x - x + y", "x, y", "return y + 0", args="y,", takes="y")

    def function(x, y):
        torch.rand([])  # eager pays for it, so it stays
        a = torch.exp(torch.tanh(x))
        return a - a + y

    names = [getattr(target, "__name__", target) for target in targets(check(tmp_path, function, text))]
    assert names == ["rand", "fused"]


def test_another_function_may_take_the_replacements_place(tmp_path):
    calls = []

    def function_of(loaded):
        def watched(*args):
            calls.append(len(args))
            return loaded.replacement_func(*args)

        return watched

    graph = captured(lambda x, y: x + y, X, Y)
    passes = load(tmp_path, source("return x + y", "x, y", "return x + y"))
    rewritten = apply_passes(graph.graph_module, passes, function_of)
    assert torch.equal(rewritten.graph_module(X, Y)[0], X + Y)
    assert calls == [2]


@pytest.mark.parametrize(
    ("pattern", "returned", "text"),
    [
        ("return x + y, x - y", "return x + y", "2 values, its replacement function returned a Tensor"),
        ("return x + y, x - y", "return x, y, x", "returned 3 values"),
        ("return x + y", "return x + y, x", "pattern returns one value"),
    ],
)  # fmt: skip
def test_wrong_number_of_outputs_is_explained(tmp_path, pattern, returned, text):
    graph = captured(lambda x, y: (x + y, x - y), X, Y)
    passes = load(tmp_path, source(pattern, "x, y", returned))
    rewritten = apply_passes(graph.graph_module, passes, lambda each: checked(each.replacement_func, each))
    with pytest.raises(RuntimeError, match=text):
        rewritten.graph_module(X, Y)


def test_helpers_are_one_module_by_every_name(tmp_path):
    helper = "import torch\nCALLS = []\n\n\ndef fused(x, y):\n    return x + y\n"
    text = "import torch\nimport helper\nimport helper as h\nfrom helper import fused\n"
    text += "from pass_dir.helper import fused as g\nimport pass_dir.helper\n"
    text += "from . import helper as relative\nfrom .helper import CALLS\n"
    text += "assert helper is h is pass_dir.helper is relative and g is fused and CALLS is helper.CALLS\n"
    text += source("return x + y", "x, y", "return x").replace("def fused", "def unused")
    (loaded,) = load(tmp_path, text, helper=helper)
    assert loaded.replacement_func is sys.modules["pass_dir.helper"].fused
    assert "helper" not in sys.modules


def test_two_candidates_after_another_do_not_mix(tmp_path):
    for number in (1, 2):
        root = tmp_path / str(number)
        text = "from helper import N\n" + source("return x + y", "x, y", "return N")
        (loaded,) = load(root, text, helper=f"N = {number}\n")
        assert loaded.replacement_func(X, Y) == number


GOOD = source("return x + y", "x, y", "return x + y")
P = {MANIFEST: '["P"]'}
BROKEN = {
    "no manifest": ({"P.py": GOOD}, f"{MANIFEST} is missing"),
    "manifest no JSON": ({"P.py": GOOD, MANIFEST: "['P']"}, "not valid JSON"),
    "manifest no list": ({"P.py": GOOD, MANIFEST: '{"P": 1}'}, "must be a list"),
    "empty manifest": ({"P.py": GOOD, MANIFEST: "[]"}, "must be a list"),
    "unknown name": ({"Fuse.py": GOOD, MANIFEST: '["Fuze"]'}, "no file Fuze.py; did you mean 'Fuse'?"),
    "name with .py": ({"P.py": GOOD, MANIFEST: '["P.py"]'}, "write the name without .py"),
    "twice": ({"P.py": GOOD, MANIFEST: '["P", "P"]'}, "names a pass twice"),
    "syntax": ({"P.py": "x = 1\ndef pattern(:\n"} | P, "P.py:2: SyntaxError"),
    "import": ({"P.py": "import torch\nimport nothing_there\n"} | P, "P.py:2: ModuleNotFoundError"),
    "exception": (
        {"P.py": "import helper\n", "helper.py": "\n1 / 0\n"} | P,
        "helper.py:2: ZeroDivisionError",
    ),
    "exit": ({"P.py": "raise SystemExit(0)\n"} | P, "P.py:1: SystemExit"),
    "no pattern": (
        {"P.py": GOOD.replace("def pattern", "def other")} | P,
        "P.py: defines no function pattern",
    ),
    "no replacement_func": (
        {"P.py": GOOD.replace("def replacement_func", "def other")} | P,
        "P.py: defines no function replacement_func",
    ),
    "function of torch": ({"P.py": GOOD.replace("return fused", "return torch.add")} | P, "returned add"),
    "lambda": ({"P.py": GOOD.replace("return fused", "return lambda x, y: x")} | P, "no lambda"),
    "parameters": (
        {"P.py": GOOD.replace("replacement_args(x, y)", "replacement_args(x)")} | P,
        "replacement_args must take pattern's parameters (x, y)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_candidate_says_what_and_where(tmp_path, name):
    files, text = BROKEN[name]
    with pytest.raises(PassLoadError) as error:
        load_passes(Candidate(files), tmp_path)
    assert text in str(error.value)
    assert "passagent/" not in str(error.value)


def test_one_replacement_function_for_all_passes(tmp_path):
    other = source("return x * y", "x, y", "return x * y")
    with pytest.raises(PassLoadError, match="P0 and P1 return different functions"):
        load_passes(candidate(GOOD, other), tmp_path)
    shared = "from pass_dir.shared import fused\n" + GOOD.replace("def fused", "def unused").replace(
        "@torch.fx.wrap\n", ""
    )
    both = candidate(shared, shared, shared="def fused(x, y):\n    return x\n")
    assert len(load_passes(both, tmp_path)) == 2


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("x.float(), y", "replacement_args failed"),
        ("x + y,", "replacement_args failed"),
        ("torch.zeros(2),", "returned a Tensor"),
        ("x", "must return a tuple"),
    ],
)
def test_replacement_args_only_arrange(tmp_path, args, text):
    graph = captured(lambda x, y: x + y, X, Y)
    passes = load(tmp_path, source("return x + y", "x, y", "return x", args=args))
    with pytest.raises(PassLoadError, match=text):
        apply_passes(graph.graph_module, passes)


OPERATORS = [torch.relu, torch.tanh, torch.relu_, torch.sigmoid]
BINARY = [operator.add, operator.mul, operator.iadd, operator.imul, torch.maximum]


@st.composite
def graphs_with_writes(draw):
    """A graph of 4 to 24 operators with in-place ones, stores and views, and some of its operators."""
    graph = fx.Graph()
    values = [graph.placeholder("a"), graph.placeholder("b")]
    for _ in range(draw(st.integers(4, 24))):
        kind = draw(st.sampled_from(["unary", "unary", "binary", "binary", "view", "store"]))
        first = draw(st.sampled_from(values))
        if kind == "unary":
            values.append(graph.call_function(draw(st.sampled_from(OPERATORS)), (first,)))
        elif kind == "binary":
            other = draw(st.sampled_from(values))
            values.append(graph.call_function(draw(st.sampled_from(BINARY)), (first, other)))
        elif kind == "view":
            values.append(graph.call_method("view", (first, -1, 4)))
        else:
            graph.call_function(operator.setitem, (first, draw(st.integers(0, 3)), draw(st.floats(-2, 2))))
    graph.output((*[value for value in values[2:] if draw(st.booleans())], values[-1]))
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    start = draw(st.integers(0, len(nodes) - 2))
    span = nodes[start : draw(st.integers(start + 2, min(len(nodes), start + 9)))]
    kept = [node for node in span if draw(st.integers(0, 4))]
    return graph, kept or span


def test_what_a_replacement_returns_alone_may_be_a_view_of_what_it_was_given():
    """A second match does not move a store into it behind a read of its input."""
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    view = graph.call_method("view", (a, -1, 4))
    graph.call_function(operator.setitem, (view, 0, 0.0))
    added = graph.call_function(operator.add, (a, a))
    first = graph.call_method("view", (b, -1, 4))
    graph.call_function(torch.tanh, (first,))
    second = graph.call_method("view", (b, -1, 4))
    graph.call_function(torch.tanh, (second,))
    graph.output((added,))
    traced = fx.Graph()
    x, y = traced.placeholder("x"), traced.placeholder("y")
    traced.call_function(torch.tanh, (x,))
    traced.output((traced.call_method("view", (y, -1, 4)),))
    fused = fx.GraphModule({}, traced).forward

    def replacement(*args):
        return fused(*args)

    loaded = LoadedPass("P", "P.py", traced, lambda *args: args, replacement)
    changed = fx.GraphModule({}, fx.Graph())
    changed.graph.output(changed.graph.graph_copy(graph, {}))
    rewritten = apply_passes(changed, [loaded])
    value = torch.arange(16.0).reshape(4, 4) + 1
    modules = (rewritten.graph_module, fx.GraphModule({}, graph))
    (got,), (want,) = (module(value.clone(), value.clone()) for module in modules)
    assert rewritten.applied and torch.equal(got, want)


@settings(max_examples=100)
@given(graphs_with_writes())
def test_rewriting_keeps_the_values_and_the_writes(case):
    """Whatever of a graph is taken for a pattern: where it is replaced, nothing that anyone sees changes."""
    graph, nodes = case
    traced, image = fx.Graph(), {}
    for outside in dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in nodes):
        image[outside] = traced.placeholder(f"p_{outside.name}")
    for node in nodes:
        image[node] = traced.node_copy(node, image.__getitem__)
    returned = [
        image[n] for n in nodes if n.target is not operator.setitem and any(u not in nodes for u in n.users)
    ]
    if not returned:
        return
    traced.output(tuple(returned))
    fused = fx.GraphModule({}, traced).forward
    original = fx.GraphModule({}, graph)
    changed = fx.GraphModule({}, fx.Graph())
    changed.graph = fx.Graph()
    changed.graph.output(changed.graph.graph_copy(graph, {}))

    def replacement(*args):
        return fused(*args)

    loaded = LoadedPass("P", "P.py", traced, lambda *args: args, replacement)
    rewritten = apply_passes(changed, [loaded])
    inputs = [(torch.arange(16.0).reshape(4, 4) - 7) / 5, (torch.arange(16.0).reshape(4, 4) - 3) / 7]
    ours, theirs = ([value.clone() for value in inputs] for _ in range(2))
    results, reference = rewritten.graph_module(*ours), original(*theirs)
    for a, b in zip([*results, *ours], [*reference, *theirs], strict=True):
        assert torch.equal(a, b), (rewritten.applied, str(graph), str(changed.graph))
