"""Audits on real kernels: memory between guard zones, what it holds, and where each output comes from."""

import json
import math
import os
import subprocess
import sys
import textwrap
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passagent.evaluator.calls import same_bytes
from passagent.evaluator.guards.audit import Audit
from passagent.evaluator.guards.gate import Gate
from passagent.evaluator.guards.launches import observed
from passagent.evaluator.guards.zones import ZONE
from passagent.evaluator.subgraphs import _live
from passagent.kernels import cpp_kernel

WORK = cpp_kernel(
    """void work(float* out, const float* x, int64_t n, int64_t start, int64_t stop) {
  for (int64_t i = start; i < stop; ++i) out[i] = 2.0f * x[((i % n) + n) % n];
}""",
    "work",
)
MOVE = cpp_kernel(
    "void move(float* out, const float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = x[i]; }",
    "move",
)
X = torch.linspace(-2, 2, 24).reshape(4, 6)


def work(out, x, start=0, stop=None):
    """Kernel: out[start:stop] = 2 * x, element by element."""
    WORK(out, x, x.numel(), start, out.numel() if stop is None else stop)


class Audited:
    """A function `f(x, y)` of a candidate's with the body `body`, audited on placed copies of X."""

    def __init__(self, root, body, **names):
        self.gate = Gate(root)
        self.audit = Audit(self.gate, root)
        module = types.ModuleType("audited")
        vars(module).update({"torch": torch, "work": work, "WORK": WORK, "MOVE": MOVE, "seen": [], **names})
        code = f"def f(x, y):\n{textwrap.indent(body, '    ')}\n"
        exec(compile(code, str(root / "pass_dir" / "P.py"), "exec"), module.__dict__)
        self.function, self.seen = self.audit.wrap(module.f), module.seen

    def call(self):
        """Rules that the call broke, and what it returned."""
        result = self.function(self.audit.place(X), self.audit.place(X + 1))
        self.audit.check_zones()
        self.violations = self.gate.take()
        return [violation.rule for violation in self.violations], result


EMPTY = {
    "torch.empty(4, 6)": (4, 6),
    "torch.empty(())": (),
    "torch.empty(3, dtype=torch.float16)": (3,),
    "torch.empty(3, dtype=torch.bfloat16)": (3,),
    "torch.empty(3, dtype=torch.float64)": (3,),
    "torch.empty(3, dtype=torch.complex64)": (3,),
    "torch.empty(3, dtype=torch.int64)": (3,),
    "torch.empty(3, dtype=torch.int8)": (3,),
    "torch.empty(3, dtype=torch.uint8)": (3,),
    "torch.empty(0)": (0,),
    "torch.empty(0, 6)": (0, 6),
    "torch.empty_like(x)": (4, 6),
    "torch.empty_like(x.t())": (6, 4),
    "torch.empty_like(x, dtype=torch.float16)": (4, 6),
    "x.new_empty(2, 5)": (2, 5),
    "x.new_empty((3, 4), dtype=torch.float64)": (3, 4),
    "torch.empty_strided((2, 3), (1, 2))": (2, 3),
    "torch.empty_strided((2, 2), (10, 3))": (2, 2),
    "torch.empty_strided((2, 3), (0, 1))": (2, 3),
    "x.new_empty_strided((2, 3), (3, 1))": (2, 3),
    "torch.empty_permuted((2, 3, 4), (2, 0, 1))": (2, 3, 4),
    "torch.empty((2, 3, 4, 5), memory_format=torch.channels_last)": (2, 3, 4, 5),
    "torch.empty_like(torch.empty(1, 2, 3, 4), memory_format=torch.channels_last)": (1, 2, 3, 4),
}


@pytest.mark.parametrize("expression", EMPTY)
def test_an_allocation_is_like_the_one_it_stands_for(tmp_path, expression):
    audited = Audited(tmp_path, f"seen.append({expression})\nreturn x")
    for poisoned in (False, True):
        audited.audit.begin(poisoned=poisoned)
        assert audited.call()[0] == []
    plain = eval(expression, {"torch": torch, "x": X})
    for made in audited.seen:
        assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
        assert made.shape == EMPTY[expression]
        assert (made.device, made.storage_offset(), type(made)) == (plain.device, 0, torch.Tensor)
        assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
        assert made.is_contiguous() == plain.is_contiguous()
    ordinary, poisoned = audited.seen
    if ordinary.is_floating_point() or ordinary.is_complex():
        assert not bool(ordinary.isnan().any()) and bool(poisoned.isnan().all())
    else:
        assert bool((ordinary < 100).all()) and bool((poisoned == torch.tensor(-1).to(poisoned.dtype)).all())


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.complex64]
KINDS += [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.bool]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", KINDS)
def test_guard_zones_hold_ordinary_values_in_audits_and_timed_calls(dtype, device):
    """A kernel that reads behind a tensor cannot tell the two: neither is a pattern, neither holds NaN."""
    values = (torch.arange(600) % 7 * 40).to(torch.float32).to(dtype).reshape(30, 20).to(device)
    audit, memory = Audit(Gate("/nowhere"), "/nowhere"), []
    placed, live = audit.place(values), _live(values.reshape(-1), [30, 20], memory)
    assert same_bytes(placed, values) and same_bytes(live, values)
    assert placed.is_contiguous() and live.is_contiguous()
    for tensor, raw in ((placed, audit.blocks[0].raw), (live, memory[0])):
        assert tensor.data_ptr() == raw.data_ptr() + ZONE
        for zone in (raw[:ZONE], raw[-ZONE:]):
            found = zone.cpu().view(dtype)
            wide = found.to(torch.complex64 if dtype.is_complex else torch.float64)
            assert bool(wide.isfinite().all()) and 0 < float(wide.abs().max()) <= 240
            assert len(wide.abs().unique()) >= 2
    assert not torch.equal(audit.blocks[0].zones, torch.cat([memory[0][:ZONE], memory[0][-ZONE:]]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", [0, ZONE - 1, -ZONE, -1])
def test_a_single_byte_beside_a_block_is_seen(where, device):
    audit = Audit(Gate("/nowhere"), "/nowhere")
    for poisoned in (False, True):
        audit.begin(poisoned=poisoned)
        audit.place(X.to(device))
        audit.check_zones()
        assert audit.gate.take() == []
        audit.blocks[-1].raw[where] ^= 1
        audit.check_zones()
        assert [violation.rule for violation in audit.gate.take()] == ["out_of_bounds"]
        audit.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_unwritten_memory_holds_what_the_call_before_left_but_for_a_part(tmp_path, dtype, device):
    body = f"out = torch.empty((8, 50), dtype={dtype}, device=x.device)\nseen.append(out)\nreturn x"
    audited = Audited(tmp_path, body)
    for left in (1, 2):
        audited.audit.begin()
        audited.function(audited.audit.place(X.to(device)), audited.audit.place(X.to(device)))
        before = audited.seen[-1].clone()
        audited.seen[-1].copy_(torch.arange(400).reshape(8, 50) + 1000 * left)
    kept = before == torch.arange(400).reshape(8, 50).to(device) + 1000
    assert 300 <= int(kept.sum()) < 400  # a number may be drawn where it was
    assert not audited.gate.take()


FILLED = [
    "torch.zeros(4, 6)",
    "torch.zeros_like(x)",
    "x.new_zeros((2, 2))",
    "torch.ones(3, dtype=torch.float16)",
    "torch.ones_like(x)",
    "x.new_ones(3)",
    "torch.full((2, 3), 7.5)",
    "torch.full_like(x, 2.5)",
    "x.new_full((2,), -1.0)",
    "torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)",
    "x.clone()",
    "x.t().contiguous()",
    "x[:, 1:3].contiguous()",
    "x.to('cpu', copy=True)",
    "x.t().reshape(-1)",
]


@pytest.mark.parametrize("expression", FILLED)
def test_fills_and_copies_keep_their_values(tmp_path, expression):
    audited = Audited(tmp_path, f"seen.append({expression})\nreturn x")
    audited.call()
    (made,) = audited.seen
    plain = eval(expression, {"torch": torch, "x": X})
    assert torch.equal(made, plain)
    assert (made.stride(), made.dtype) == (plain.stride(), plain.dtype)
    made.fill_(1)  # of its own: the input is not written


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    st.booleans(),
)
def test_a_placed_input_holds_its_values(shape, dtype, transposed):
    values = (torch.arange(math.prod(shape)) % 3).reshape(shape).to(dtype)
    values = values.t() if transposed and values.dim() == 2 else values
    audit = Audit(Gate("/nowhere"), "/nowhere")
    placed = [audit.place(values) for _ in range(2)]
    assert all(torch.equal(one, values) and one.is_contiguous() for one in placed)
    assert values.numel() == 0 or len({values.data_ptr(), *(one.data_ptr() for one in placed)}) == 3
    audit.check_zones()
    assert audit.gate.take() == []


BEYOND = ["-1, 3", "-1000, 0", "0, 25", "20, 24 + 1000"]


@pytest.mark.parametrize("span", BEYOND)
@pytest.mark.parametrize("target", ["out", "work_space", "x", "y"])
def test_a_write_beside_a_block_is_seen(tmp_path, span, target):
    body = (
        "out, work_space = torch.empty_like(x), torch.empty_like(x)\nwork(out, x)\n"
        f"work({target}, x, {span})\nreturn out"
    )
    rules, _ = Audited(tmp_path, body).call()
    assert "out_of_bounds" in rules


def test_a_write_up_to_the_borders_is_fine(tmp_path):
    body = "out = torch.empty(25)[:24]\nwork(out, x, 0, 25)\nwork(x, y)\nreturn out"
    assert Audited(tmp_path, body).call()[0] == []


def test_a_copy_that_is_too_long_is_seen(tmp_path):
    assert (
        "out_of_bounds"
        in Audited(tmp_path, "out = torch.empty_like(x)\nMOVE(out, x, 30)\nreturn out").call()[0]
    )


HONEST = {
    "a kernel's output": "out = torch.empty_like(x)\nwork(out, x)\nreturn out",
    "its view": "out = torch.empty_like(x)\nwork(out, x)\nreturn out.view(2, 12).t(), out[1:], out",
    "two kernels and a workspace": (
        "w = torch.empty_like(x)\nwork(w, x)\nout = torch.empty_like(x)\nwork(out, w)\nreturn out"
    ),
    "written from its middle on": "out = torch.zeros_like(x)\nwork(out.view(-1)[8:], x, 0, 16)\nreturn out",
    "a view of an input": "return x.view(-1), x[1:], x.t(), x",
    "an input written in place": "work(x, x)\nreturn x",
    "a constant": "return torch.zeros(3), torch.ones_like(x), torch.full((2,), 7.0), x.new_full((2,), 1.0)",
    "filled afterwards": "out = torch.empty_like(x)\nreturn out.fill_(3.0), torch.empty(4).zero_()",
    "a kernel in place on a clone": "out = x.clone()\nwork(out, out)\nreturn out",
    "a kernel in place on a copy": "out = torch.empty_like(x)\nout.copy_(x)\nwork(out, out)\nreturn out",
    "a kernel in place on a contiguous copy": "out = x.t().contiguous()\nwork(out, out)\nreturn out",
    "a copy of a kernel's output": "w = torch.empty_like(x)\nwork(w, x)\nreturn w.t().contiguous()",
    "a clone of a clone of it": "w = torch.empty_like(x)\nwork(w, x)\nreturn w.clone().clone()",
    "a clone of a constant": "return torch.zeros_like(x).clone()",
    "an accumulator": "out = torch.zeros_like(x)\nwork(out, x)\nreturn out",
    "an accumulator that stays 0": "out = torch.zeros_like(x)\nwork(out, x, 0, 0)\nreturn out",
    "a kernel on a copy": "c = x.t().clone()\nout = torch.empty_like(c)\nwork(out, c)\nreturn out",
    "nothing to write": "return torch.empty(0, 6), x[:0].clone()",
    "nested outputs": "out = torch.empty_like(x)\nwork(out, x)\nreturn [out, (x, out.view(-1))]",
}
DISHONEST = {
    "never written": ("not_written", "return torch.empty_like(x)"),
    "only a decoy written": (
        "not_written",
        "w, out = torch.empty_like(x), torch.empty_like(x)\nwork(w, x)\nreturn out",
    ),
    "its view": ("not_written", "return torch.empty(48).view(2, 24)[1]"),
    "one output of two": (
        "not_written",
        "out = torch.empty_like(x)\nwork(out, x)\nreturn out, torch.empty(3)",
    ),
    "in a nested tuple": (
        "not_written",
        "out = torch.empty_like(x)\nwork(out, x)\nreturn (out, [torch.empty(3)])",
    ),
    "a clone": ("delegated_copy", "return x.clone()"),
    "a transposition": ("delegated_copy", "return x.t().contiguous()"),
    "a reshape that copies": ("delegated_copy", "return x.t().reshape(-1)"),
    "a move to the same device": ("delegated_copy", "return x.to('cpu', copy=True)"),
    "a copy into": ("delegated_copy", "out = torch.empty_like(x)\nout.copy_(x)\nreturn out"),
    "a copy over a fill": ("delegated_copy", "out = torch.zeros_like(x)\nout.copy_(x)\nreturn out"),
    "a copy of a copy": ("delegated_copy", "return x.t().clone().contiguous().t().contiguous().clone()"),
    "a copy that a decoy is given": ("delegated_copy", "out = x.clone()\nwork(out, y, 0, 0)\nreturn out"),
    "a copy into that a decoy is given": (
        "delegated_copy",
        "out = torch.empty_like(x)\nout.copy_(x)\nwork(out, y, 0, 0)\nreturn out",
    ),
    "a copy over a kernel's output": (
        "delegated_copy",
        "out = torch.empty_like(x)\nwork(out, y)\nout.copy_(x)\nreturn out",
    ),
    "a copy that a decoy is given to read": (
        "delegated_copy",
        "out = x.t().contiguous()\nwork(y, out, 0, 0)\nreturn out",
    ),
    "a copy that a decoy copies onto itself": (
        "delegated_copy",
        "out = x.t().contiguous()\nMOVE(out, out, 24)\nreturn out",
    ),
    "a copy of a copy that a decoy is given": (
        "delegated_copy",
        "w = x.clone()\nwork(w, y, 0, 0)\nout = w.t().contiguous()\nwork(out, y, 0, 0)\nreturn out",
    ),
    "a buffer from before": ("kept_buffer", "work(buffer, x)\nreturn buffer"),
    "a view of it": ("kept_buffer", "work(buffer, x)\nreturn buffer.view(-1)[2:]"),
    "nothing but a buffer from before": ("kept_buffer", "return buffer"),
    "another type": ("tensor_type", "return torch.nn.Parameter(x, requires_grad=False)"),
    "an attribute": ("tensor_type", "x.note = 1\nreturn x"),
    "a number": ("tensor_type", "return 3"),
    "nothing": ("tensor_type", "return None"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_origin_is_accepted(tmp_path, name):
    rules, result = Audited(tmp_path, HONEST[name]).call()
    assert rules == []
    assert not any(bool(t.isnan().any()) for t in torch.utils._pytree.tree_leaves(result))


@pytest.mark.parametrize("name", DISHONEST)
def test_a_dishonest_origin_is_named(tmp_path, name):
    rule, body = DISHONEST[name]
    audited = Audited(tmp_path, body, buffer=torch.empty(4, 6))
    assert audited.call()[0] == [rule]
    (violation,) = audited.violations
    assert (violation.file, violation.line) == ("P.py", 1)
    assert violation.message


def test_a_buffer_of_an_earlier_call_is_kept(tmp_path):
    body = "if not seen:\n    seen.append(torch.empty_like(x))\nwork(seen[0], x)\nreturn seen[0]"
    audited = Audited(tmp_path, body)
    assert audited.call()[0] == []  # a first call cannot be told apart
    assert audited.call()[0] == ["kept_buffer"]


def test_what_an_earlier_call_kept_and_handed_to_a_kernel_is_not_this_calls(tmp_path):
    """A block that an earlier call's kernel wrote does not vouch for this call's output."""
    body = (
        "if not seen:\n    seen.append(torch.empty_like(x))\n    work(seen[0], x)\n"
        "return seen[0].t().contiguous()"
    )
    audited = Audited(tmp_path, body)
    assert audited.call()[0] == []
    assert audited.call()[0] == ["delegated_copy"]


def test_computing_operators_are_recorded_and_their_results_not_blamed_twice(tmp_path):
    audited = Audited(tmp_path, "out = torch.empty_like(x)\nwork(out, x)\n\nreturn out + x")
    assert audited.call()[0] == ["computing_operator"]
    assert audited.violations[0].line == 5
    assert audited.gate.calls == 1


def test_all_outputs_live_at_addresses_of_their_own(tmp_path):
    audited = Audited(tmp_path, HONEST["a kernel's output"])
    results = [audited.call()[1] for _ in range(3)]
    assert len({result.data_ptr() for result in results}) == 3
    assert all(torch.equal(result, 2 * X) for result in results)
    assert len(audited.audit.blocks) == 9
    audited.audit.close()
    assert audited.audit.blocks == []


def test_what_is_not_wrapped_is_not_moved(tmp_path):
    audited = Audited(tmp_path, HONEST["a kernel's output"])
    audited.call()
    before = len(audited.audit.blocks)
    torch.empty(4).fill_(0.0).clone()
    assert len(audited.audit.blocks) == before


def test_launches_are_observed_and_only_meanwhile():
    pointers: set[int] = set()
    original = type(WORK).__call__
    out, quiet = torch.empty(24), torch.empty(24)
    work(quiet, X)
    with observed(pointers):
        work(out[4:], X, 0, 3)
    assert {out.data_ptr() + 16, X.data_ptr()} <= pointers
    assert not pointers & {quiet.data_ptr(), out.data_ptr()}
    work(quiet, X)
    assert quiet.data_ptr() not in pointers
    with pytest.raises(TypeError), observed(pointers):
        WORK(out, "x")
    assert type(WORK).__call__ is original


def test_addresses_in_a_table_are_observed():
    pointers: set[int] = set()
    show = cpp_kernel("void show(const int64_t* table, const int64_t* many) {}", "show")
    with observed(pointers):
        show(torch.tensor([[77], [X.data_ptr()]]), torch.arange(1000, 9000))
    assert {77, X.data_ptr()} <= pointers
    assert not pointers & set(range(1000, 9000))


def test_an_exception_ends_the_watch(tmp_path):
    original = type(WORK).__call__
    audited = Audited(tmp_path, "raise ValueError(x.numel())")
    with pytest.raises(ValueError, match="24"):
        audited.call()
    assert type(WORK).__call__ is original
    assert not bool(torch.empty(3).fill_(1.0).isnan().any())
    blocks = len(audited.audit.blocks)
    torch.empty(3)
    assert len(audited.audit.blocks) == blocks


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
import passagent.evaluator.guards.audit as audit_module
from passagent.evaluator.guards.gate import Gate
from passagent.evaluator.guards.launches import observed
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import Candidate

results = {}
for number, (name, files) in enumerate(json.load(sys.stdin).items()):
    root = Path(sys.argv[1]) / str(number)
    root.mkdir()
    audit = audit_module.Audit(Gate(root), root)
    function = audit.wrap(load_passes(Candidate(files), root)[0].replacement_func)
    x, y = torch.linspace(-2, 2, 90).reshape(9, 10), torch.ones(9, 10)
    out = function(audit.place(x), audit.place(y))
    audit.check_zones()
    right = bool(torch.equal(out, torch.relu(x + y)))
    results[name] = {"right": right, "rules": sorted({v.rule for v in audit.gate.take()})}
print(json.dumps(results))
"""
TRITON = """import torch
import triton
import triton.language as tl
{configs}
@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=1.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=1.0)
    tl.store(out_ptr + offsets, tl.maximum(x + y, 0.0), mask={mask})


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    {launch}
    return {returned}


def pattern(in_0, in_1):
    return torch.nn.functional.relu(in_0 + in_1)


def replacement_args(in_0, in_1):
    return (in_0, in_1)


def replacement_func():
    return fused
"""
LAUNCH = "add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)"


def triton_pass(configs="", mask="mask", launch=LAUNCH, returned="out"):
    text = TRITON.format(configs=configs, mask=mask, launch=launch, returned=returned)
    return {"P.py": text, "sorted_output_pass_rule_names.json": '["P"]'}


def test_launches_of_tritons_interpreter(tmp_path):
    pytest.importorskip("triton")
    autotune = '@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])'
    grid = 'add_relu[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)'
    expected = {
        "honest": (triton_pass(), []),
        "autotuned": (triton_pass(autotune, launch=grid), []),
        "keyword arguments": (
            triton_pass(
                launch=LAUNCH.replace("x, y, out", "x, y, out_ptr=out").replace("out, n", "out, n=n")
            ),
            [],
        ),
        "a mask forgotten": (triton_pass(mask="offsets < n + 100"), ["out_of_bounds"]),
        "not launched": (triton_pass(launch="pass"), ["not_written"]),
        "another output": (triton_pass(returned="torch.empty_like(out)"), ["not_written"]),
        "a copy with a decoy": (
            triton_pass(
                launch=LAUNCH + "\n    w = x.clone()\n    add_relu[(1,)](x, y, w, 0, BLOCK=64)", returned="w"
            ),
            ["delegated_copy"],
        ),
    }
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path)],
        input=json.dumps({name: files for name, (files, _) in expected.items()}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    assert {name: result["rules"] for name, result in results.items()} == {
        name: rules for name, (_, rules) in expected.items()
    }
    assert all(results[name]["right"] for name in ("honest", "autotuned", "keyword arguments"))
