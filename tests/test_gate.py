"""The gate on real tensors: what computes is recorded with its line, in every call; nothing else is."""

import json
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passagent.evaluator.guards import rules
from passagent.evaluator.guards.gate import Gate, plain, ungated
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import MANIFEST, Candidate

PASS = """

def pattern(in_0, in_1):
    return torch.nn.functional.relu(in_0 + in_1)


def replacement_args(in_0, in_1):
    return (in_0, in_1)


def replacement_func():
    return fused
"""
X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


def loaded(root: Path, body: str, head: str = ""):
    """`fused(x, y)` of a pass with this body (its first line is line 2 of P.py)."""
    text = f"def fused(x, y):\n{textwrap.indent(body, '    ')}\n\nimport torch\n{head}{PASS}"
    return load_passes(Candidate({"P.py": text, MANIFEST: '["P"]'}), root)[0].replacement_func


def gated(root: Path, body: str):
    """What the gate found in a call of `fused` with this body, and what the call returned."""
    gate = Gate(root)
    result = gate.wrap(loaded(root, body))(X.clone(), X.clone())
    return gate.take(), result


def place(code: str, root: Path, file: str = "P.py"):
    """A function `f` whose code lies in the candidate's file, without loading a pass."""
    module = types.ModuleType("placed")
    exec(compile(code, str(root / "pass_dir" / file), "exec"), module.__dict__)
    return module.f


ALLOWED = [
    "return torch.empty_like(x), torch.empty_like(x, memory_format=torch.contiguous_format)",
    "out = torch.empty((2, 3), dtype=torch.float16, device=x.device)\nout.fill_(1.0)\nreturn out.zero_()",
    "return torch.zeros(4), torch.ones(2), torch.full((2, 2), 7), torch.ones_like(x), torch.full_like(x, 2)",
    "return torch.tensor([1.0]), torch.tensor(3)",
    "return x.new_full((2,), 3), x.new_zeros(3), x.new_empty((2, 2)), torch.zeros_like(x)",
    "return x.new_ones(2), x.new_empty_strided((2, 2), (1, 2)), torch.empty_permuted((2, 3), (1, 0))",
    "return x.view(6, 4).t().transpose(0, 1).unsqueeze(0).squeeze(0).expand(6, 4).permute(1, 0)",
    "return x[0], x[..., 1:3], x[:, None], x.select(1, 0), x.flatten(), x.unflatten(0, (1, 2))",
    "return (*x.split(1, 0), *x.chunk(2, -1), *x.unbind(1)), x.unfold(2, 2, 1), x.detach(), x.squeeze()",
    "return x.movedim(0, 1), x.swapaxes(0, 1), x.narrow(2, 1, 2), x.view_as(y), x.expand_as(y), x.ravel()",
    "return torch.broadcast_to(x, (5, 2, 3, 4)), torch.broadcast_tensors(x, x[:1])",
    "return x.broadcast_to(5, 2, 3, 4), x.diagonal(0, 1, 2), x.adjoint()",
    "return x.moveaxis(0, 1), x.swapdims(0, 1), x.reshape_as(y), x.tensor_split(2)",
    "return x.split_with_sizes([1, 1])",
    "return torch.as_strided(x, (2,), (1,)), torch.chunk(x, 2), torch.clone(x), torch.flatten(x)",
    "return torch.movedim(x, 0, 1), torch.narrow(x, 0, 0, 1), torch.permute(x, (2, 1, 0)), torch.t(x[0])",
    "return torch.reshape(x, (-1,)), torch.select(x, 0, 0), torch.split(x, 1), torch.squeeze(x)",
    "return torch.swapaxes(x, 0, 1), torch.transpose(x, 0, 1), torch.unbind(x), torch.unsqueeze(x, 0)",
    "return x.new_full((2,), 1.0), x.new_tensor([1.0, 2.0])",
    "return x.permute(2, 1, 0).contiguous(), x.permute(2, 1, 0).reshape(-1), x.clone(), x.to(x.dtype), x.mT",
    "return x.contiguous(), x.cpu(), x.float(), x.to(x.device), x.to('cpu', copy=True)",
    "return x.contiguous(memory_format=torch.contiguous_format), x[:, :, None].contiguous()",
    "x.copy_(x.clone())\nreturn x",
    "out = torch.empty(2, 3, 4)\nout.copy_(x)\nreturn out.data",
    "return x.view(torch.int32), x.as_strided((2, 2), (1, 2)), x.is_contiguous(), x.stride(), x.data_ptr()",
    "n = x.numel() * 2 + x.shape[0]\nreturn torch.empty(n)[:0], torch.empty_strided((2, 2), (1, 2))",
    "return x.dtype.itemsize, x.device, x.dim(), x.size(0), x.storage_offset(), x.is_complex(), len(x)",
    "return x.is_floating_point(), x.element_size(), x.nbytes, x.layout, x.untyped_storage().nbytes()",
    "return torch.broadcast_shapes(x.shape, y.shape), torch.promote_types(x.dtype, torch.int64)",
    "return torch.result_type(x, 2.0), torch.finfo(x.dtype).max, x.is_same_size(y), torch.is_tensor(x)",
    "return torch.result_type(x, y), torch.result_type(2, x), x.is_set_to(y), x.get_device(), x.is_neg()",
    "return x.dense_dim(), x.is_conj(), x.is_inference(), x.is_leaf, x.retains_grad, x._version, x.output_nr",
    "with torch.no_grad():\n    return torch.view_as_real(torch.empty(3, dtype=torch.complex64))",
    "return torch.view_as_complex(x.view(2, 3, 2, 2))",
]
COMPUTING = {
    "return x + y": "aten.add",
    "return -x": "aten.neg",
    "return 2 / x": "aten.reciprocal",
    "return x @ y.transpose(1, 2)": "aten.matmul",
    "return torch.einsum('abc,abc->ab', x, y)": "aten.",
    "return torch.relu(x)": "aten.relu",
    "return x.exp_()": "aten.exp_",
    "x += y\nreturn x": "aten.add_",
    "x[0] += 1\nreturn x": "aten.add_",
    "return torch.ops.aten.mul.Tensor(x, y)": "aten.mul",
    "return torch.addcmul(x, x, y)": "aten.addcmul",
    "return torch.clamp(x, 0)": "aten.clamp",
    "return sum([x, y])": "aten.add",
    "return x.sum()": "aten.sum",
    "return x.mean(-1)": "aten.mean",
    "return x.amax(0), x.argmax()": "aten.amax",
    "return torch.cumsum(x, 0)": "aten.cumsum",
    "return x.sort()[0]": "aten.sort",
    "return x.norm()": "aten.",
    "return x.to(torch.float64)": "aten._to_copy",
    "return x.half()": "aten._to_copy",
    "return x.int()": "aten._to_copy",
    "return torch.tensor(x.tolist())": "aten.",
    "return x.flatten()[0].item()": "aten.i",
    "return 1 if x[0, 0, 0] else 2": "aten.i",
    "return float(x[0, 0, 0])": "aten.i",
    "return f'{x[0, 0, 0]}'": "aten.i",
    "return str(x)": "aten.",
    "return x.equal(y)": "aten.equal",
    "return torch.allclose(x, y)": "aten.",
    "return x == y": "aten.eq",
    "return x[x > 0]": "aten.gt",
    "return x[torch.empty(2, dtype=torch.int64).zero_()]": "aten.index",
    "x[torch.empty(2, dtype=torch.int64).zero_()] = 0\nreturn x": "aten.index_put_",
    "return x.index_select(0, torch.zeros(1, dtype=torch.int64))": "aten.index_select",
    "return x.gather(0, torch.zeros(1, 3, 4, dtype=torch.int64))": "aten.gather",
    "return torch.where(torch.ones(2, 3, 4, dtype=torch.bool), x, y)": "aten.where",
    "return x.masked_fill(torch.ones(2, 3, 4, dtype=torch.bool), 0)": "aten.masked_fill",
    "return torch.nonzero(x)": "aten.nonzero",
    "return torch.cat([x, y])": "aten.cat",
    "return torch.stack([x, y])": "aten.stack",
    "return torch.flip(x, (0,))": "aten.flip",
    "return torch.roll(x, 1)": "aten.roll",
    "return x.tril()": "aten.tril",
    "return x.repeat(2, 1, 1)": "aten.",
    "return torch.nn.functional.pad(x, (1, 1))": "aten.",
    "out = torch.empty_like(x)\nout[:, 0] = x[:, 1]\nreturn out": "aten.copy_",
    "out = torch.empty(4, 3, 4)\nout[:2].copy_(x)\nreturn out": "aten.copy_",
    "out = torch.empty(2, 3, 4, dtype=torch.float64)\nout.copy_(x)\nreturn out": "aten.copy_",
    "out = torch.empty(2, 3, 4)\nout.copy_(x[0])\nreturn out": "aten.copy_",
    "return torch.full((2,), x[0, 0, 0])": "aten.",
    "return torch.empty(2).fill_(x[0, 0, 0])": "aten.",
    "return torch.full_like(x, y[0, 0, 0])": "aten.",
    "return torch.tensor(x, dtype=torch.float64)": "aten._to_copy",
    "return x.new_tensor(x, dtype=torch.float16)": "aten._to_copy",
    "return torch.arange(4)": "aten.arange",
    "return torch.linspace(0, 1, 4)": "aten.linspace",
    "return torch.eye(4)": "aten.eye",
    "return torch.rand(4)": "aten.rand",
    "return torch.empty(4).uniform_()": "aten.uniform_",
    "return torch.nn.functional.softmax(x, -1)": "aten.",
    "return torch.nn.functional.silu(x)": "aten.silu",
    "return torch.nn.functional.layer_norm(x, (4,))": "aten.",
    "return torch.nn.functional.max_pool1d(x, 2)": "aten.",
    "return torch.nn.functional.scaled_dot_product_attention(x, y, y)": "aten.",
    "return torch.add(x, y, out=torch.empty_like(x))": "aten.add",
    "return torch.cat([x, y], out=torch.empty(0))": "aten.cat",
    "return torch.mm(x[0], y[0].t(), out=torch.empty(3, 3))": "aten.mm",
    "return torch.fft.fft(x)": "aten.",
    "return torch.linalg.inv(torch.zeros(2, 2) .fill_(1))": "aten.",
    "return torch.conj(torch.view_as_complex(x.view(2, 3, 2, 2)))": "aten._conj",
    "return torch._neg_view(x)": "aten._neg_view",
    "return torch.imag(torch.view_as_complex(x.view(2, 3, 2, 2)).conj())": "aten._conj",
    "x.resize_(3)\nreturn x": "aten.resize_",
    "x.set_(y)\nreturn x": "aten.set_",
    "return x.sum_to_size(1, 3, 4)": "aten.sum",
    "return torch._foreach_add([x], [y])": "aten._foreach_add",
    "torch._foreach_copy_([x[0]], [y[0]])\nreturn x": "aten._foreach_copy_",
}


@pytest.mark.parametrize("body", ALLOWED)
def test_allocation_views_and_metadata_are_not_recorded(tmp_path, body):
    assert gated(tmp_path, body)[0] == []


def test_every_name_that_inspection_allows_is_tried():
    names = rules.TENSOR_METHODS | rules.TORCH_VIEWS | rules.FACTORIES
    assert {name for name in names if not any(re.search(rf"\.{name}\b", body) for body in ALLOWED)} == set()


def test_a_clone_that_keeps_strides_is_not_recorded(tmp_path):
    assert (
        gated(tmp_path, "return x.transpose(0, 1).clone(), x.permute(2, 0, 1).to('cpu', copy=True)")[0] == []
    )


def test_a_tensor_made_of_elements_is_recorded(tmp_path):
    assert gated(tmp_path, "return torch.tensor([x[0, 0, 0], x[0, 0, 1]])")[0]


@pytest.mark.parametrize("body", COMPUTING)
def test_a_computing_operator_is_recorded(tmp_path, body):
    gate = Gate(tmp_path)
    function = gate.wrap(loaded(tmp_path, body))
    try:
        function(X.clone(), X.clone())
    except RuntimeError:
        assert "linalg" in body  # a singular matrix: that it was called is what counts
    found = gate.take()
    assert any(violation.message.startswith(COMPUTING[body]) for violation in found), found
    assert {violation.rule for violation in found} == {"computing_operator"}
    assert {violation.file for violation in found} == {"P.py"}
    assert {violation.line for violation in found} <= set(range(2, 3 + body.count("\n")))


def test_the_operator_still_runs_and_names_its_line_once(tmp_path):
    body = "a = torch.empty_like(x)\nfor _ in range(3):\n    z = x + y\nreturn z"
    found, result = gated(tmp_path, body)
    assert torch.equal(result, X + X)
    (violation,) = found
    assert (violation.file, violation.line) == ("P.py", 4)
    assert "kernel" in violation.message


def test_the_innermost_frame_of_the_candidate_is_named(tmp_path):
    files = {
        "P.py": "from pass_dir.tools import double\nimport torch\n\ndef fused(x, y):\n    return double(x)\n"
        + PASS,
        "tools.py": "import torch\n\ndef double(x):\n    return torch.nn.functional.softmax(x, 0) + x\n",
        MANIFEST: '["P"]',
    }
    fused = load_passes(Candidate(files), tmp_path)[0].replacement_func
    gate = Gate(tmp_path)
    gate.wrap(fused)(X, X)
    assert {(violation.file, violation.line) for violation in gate.take()} == {("tools.py", 4)}


def test_a_function_of_torch_itself_is_recorded(tmp_path):
    gate = Gate(tmp_path)
    gate.wrap(torch.add)(X, X)
    assert [(violation.rule, violation.file) for violation in gate.take()] == [("computing_operator", "")]


def test_the_watch_is_the_same_in_every_call(tmp_path):
    """Dispatch does not depend on how often, or how long ago, something was called."""
    body = "calls.append(1)\nif len(calls) > 60:\n    return x + y\nreturn torch.empty_like(x)"
    gate = Gate(tmp_path)
    function = gate.wrap(loaded(tmp_path, body, head="calls = []\n"))
    seen = []
    for _ in range(64):
        function(X, X)
        seen.append(len(gate.take()))
    assert seen == [0] * 60 + [1] * 4


def test_each_line_once_but_every_call_counted(tmp_path):
    gate = Gate(tmp_path)
    function = gate.wrap(loaded(tmp_path, "return x + y"))
    for _ in range(5):
        function(X, X)
    assert (len(gate.found), gate.calls) == (1, 5)
    assert len(gate.take()) == 1
    assert gate.take() == []
    function(X, X)
    assert len(gate.take()) == 1


def test_only_within_wrap_and_between_open_and_close(tmp_path):
    gate = Gate(tmp_path)
    function = gate.wrap(torch.empty_like)
    X + X
    function(X)
    X + X
    assert gate.take() == []
    gate.open()
    X.view(-1)
    X + X
    gate.close()
    X * X
    assert [violation.message.split()[0] for violation in gate.take()] == ["aten.add"]


def test_what_the_evaluator_does_in_between_is_not_the_candidates(tmp_path):
    gate = Gate(tmp_path)

    def function(x):
        with ungated():
            x = x * 2
        return x.view(-1)

    assert torch.equal(gate.wrap(function)(X), (X * 2).view(-1))
    assert gate.take() == []
    gate.wrap(lambda x: x * 2)(X)
    assert len(gate.take()) == 1


def test_an_exception_leaves_the_gate_shut(tmp_path):
    gate = Gate(tmp_path)
    with pytest.raises((TypeError, RuntimeError)):
        gate.wrap(lambda x: torch.mm(x, x))(X)
    gate.take()
    X + X
    assert gate.take() == []


def test_an_operator_that_fails_is_recorded_and_fails(tmp_path):
    gate = Gate(tmp_path)
    with pytest.raises(RuntimeError, match="matri"):
        gate.wrap(loaded(tmp_path, "return torch.mm(x, y)"))(X, X)
    assert [violation.line for violation in gate.take()] == [2]
    X + X
    assert gate.take() == []


def test_a_newer_gate_takes_over(tmp_path):
    older, newer = Gate(tmp_path / "older"), Gate(tmp_path / "newer")
    older.wrap(torch.add)(X, X)
    assert older.take() == []
    assert len(newer.take()) == 1


def test_the_owner_is_the_innermost_of_candidate_and_triton(tmp_path):
    """A launch of Triton's computes: Triton's. A hook of the candidate's within: the candidate's."""
    triton = pytest.importorskip("triton")
    gate = Gate(tmp_path)
    inside = str(Path(triton.__file__).parent / "runtime" / "interpreter.py")
    operator = place("def f(x, y):\n    return x + y", tmp_path)
    calls_candidate: dict = {}
    exec(compile("def f(g, *args):\n    return g(*args)", inside, "exec"), calls_candidate)
    outer = place("def f(g, *args):\n\n    return g(*args)", tmp_path, "outer.py")
    launch = calls_candidate["f"]

    gate.wrap(outer)(launch, torch.add, X, X)  # a launch that copies in the interpreter
    assert gate.take() == []
    gate.wrap(outer)(launch, operator, X, X)  # a hook or grid function of the candidate's
    assert [(violation.file, violation.line) for violation in gate.take()] == [("P.py", 2)]
    gate.wrap(outer)(torch.add, X, X)
    assert [(violation.file, violation.line) for violation in gate.take()] == [("outer.py", 3)]


def test_tritons_arithmetic_on_a_tensor_is_the_candidates(tmp_path):
    """Only Triton's launchers are exempt, not functions that compute on whatever they are given."""
    pytest.importorskip("triton")
    gate = Gate(tmp_path)
    gate.wrap(place("import triton\ndef f(x):\n    return triton.cdiv(x, 2)", tmp_path))(X)
    assert {(violation.file, violation.line) for violation in gate.take()} == {("P.py", 3)}


def test_a_file_beside_the_candidates_is_not_triton(tmp_path):
    """A module of the candidate's named after Triton is still the candidate's."""
    gate = Gate(tmp_path)
    gate.wrap(place("def f(x):\n    return x + x", tmp_path, "triton/runtime/interpreter.py"))(X)
    assert [violation.file for violation in gate.take()] == ["triton/runtime/interpreter.py"]


ROOT = Path("/nowhere/candidate")
CHAIN = place(
    "def f(x, steps):\n    for step in steps:\n        x = step(x)\n    return x", ROOT
)  # what runs, runs below a frame of the candidate's


@st.composite
def steps(draw):
    """Allowed steps that are valid for whatever shape they meet."""

    def dim(x, k):
        return k % x.dim()

    k, size = draw(st.integers(0, 5)), draw(st.integers(1, 3))
    return draw(
        st.sampled_from(
            [
                lambda x: x.transpose(0, dim(x, k)) if x.dim() else x,
                lambda x: x.permute(tuple(range(x.dim()))[::-1]),
                lambda x: x.unsqueeze(k % (x.dim() + 1)) if x.dim() < 6 else x,
                lambda x: x.squeeze(dim(x, k)) if x.dim() else x,
                lambda x: x.select(dim(x, k), 0) if x.dim() and x.shape[dim(x, k)] else x,
                lambda x: x.narrow(dim(x, k), 0, min(size, x.shape[dim(x, k)])) if x.dim() else x,
                lambda x: x[..., :size] if x.dim() else x,
                lambda x: x[None] if x.dim() < 6 else x,
                lambda x: x.reshape(-1),
                lambda x: x.flatten(),
                lambda x: x.contiguous(),
                lambda x: x.clone(memory_format=torch.contiguous_format),
                lambda x: x.expand(size, *x.shape) if x.dim() < 5 else x,
                lambda x: x.split(max(1, size), 0)[0] if x.dim() else x,
                lambda x: x.chunk(size, 0)[0] if x.dim() else x,
                lambda x: x.unbind(0)[0] if x.dim() and x.shape[0] else x,
                lambda x: x.movedim(0, -1) if x.dim() else x,
                torch.empty_like,
                torch.zeros_like,
                lambda x: torch.full(x.shape, 2.0, dtype=x.dtype),
                lambda x: x.new_empty(x.shape).copy_(x),
                lambda x: x.as_strided(x.size(), x.stride()),
                lambda x: x.detach(),
                lambda x: x.to(x.dtype),
            ]
        )
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.lists(steps(), max_size=12),
    st.integers(0, 12),
)
def test_no_chain_of_views_and_allocations_is_recorded(shape, dtype, chain, at):
    gate = Gate(ROOT)
    x = torch.ones(shape, dtype=dtype)
    watched = gate.wrap(CHAIN)
    watched(x, chain)
    assert gate.take() == []
    watched(x, [*chain[:at], lambda x: x == 1, *chain[at:]])
    assert [violation.message.split()[0] for violation in gate.take()] == ["aten.eq"]


INTERPRETED = """
import json, sys
from pathlib import Path
from typing import NamedTuple
import torch
from passagent.evaluator.guards.gate import Gate
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import Candidate

results = []
for number, files in enumerate(json.load(sys.stdin)):
    root = Path(sys.argv[1]) / str(number)
    root.mkdir()
    gate = Gate(root)
    function = gate.wrap(load_passes(Candidate(files), root)[0].replacement_func)
    x, y = torch.linspace(-2, 2, 96).reshape(8, 12), torch.ones(8, 12)
    outs = [function(x, y) for _ in range(2)]
    right = all(torch.equal(out, torch.relu(x + y)) for out in outs)
    results.append({"right": right, "found": [v.model_dump() for v in gate.take()]})
print(json.dumps(results))
"""
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = """

@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, tl.maximum(x + y, 0.0), mask=mask)
"""
HOST = """

@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out
"""
CONFIGS = '[triton.Config({"BLOCK": b}) for b in (64, 128)]'
AUTOTUNE = f'@triton.autotune(configs={CONFIGS}, key=["n"], restore_value=["out_ptr"])\n@triton.jit'
GRID = '(lambda meta: (triton.cdiv(n, meta["BLOCK"]),))'


def test_triton_kernels_in_the_interpreter(tmp_path):
    tuned = HOST.replace("(triton.cdiv(n, 1024),)", GRID).replace(", BLOCK=1024", "")
    hook = "\n\ndef hook(args):\n    args['x_ptr'] + 1\n\n"
    hooked = KERNEL.replace("@triton.jit", AUTOTUNE.replace('{"BLOCK": b}', '{"BLOCK": b}, pre_hook=hook'))
    grid = tuned.replace("(lambda meta:", "(lambda meta: (x + 1) is None or").replace(
        "(x, y, out, n)", "(x, y, out, n, BLOCK=64)"
    )
    sources = {
        "plain": HEAD + KERNEL + HOST,
        "autotuned": HEAD + KERNEL.replace("@triton.jit", AUTOTUNE) + tuned,
        "computing beside the kernel": HEAD + KERNEL + HOST.replace("(x, y, out, n", "(x * 1, y, out, n"),
        "computing in a hook of the autotuner": HEAD + hook + hooked + tuned,
        "computing in the grid": HEAD + KERNEL + grid,
    }
    candidates = [{"P.py": text + PASS, MANIFEST: '["P"]'} for text in sources.values()]
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path)],
        input=json.dumps(candidates),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = dict(zip(sources, json.loads(done.stdout), strict=True))
    assert all(result["right"] for result in results.values())
    refused = {name for name, result in results.items() if result["found"]}
    assert refused == {name for name in sources if name.startswith("computing")}


class Later(NamedTuple):
    """What computes when it is taken apart."""

    out: torch.Tensor

    def __getitem__(self, i):
        return self.out + 1.0


def test_what_a_replacement_returns_runs_nothing_more():
    x = torch.ones(2)
    assert type(plain(Later(x))) is tuple
    assert type(plain((x, Later(x)))[1]) is tuple
    assert plain([x, None, 2]) == (x, None, 2)
    with pytest.raises(TypeError, match="return tensors"):
        plain((x, object()))
