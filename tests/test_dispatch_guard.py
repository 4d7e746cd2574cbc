"""The dispatch guard on real tensors: what computes is recorded with its line, honest host code is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from honest import HEAD, HOST, KERNEL, PASS

from passagent.evaluator.guards.dispatch import DispatchGuard
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import MANIFEST, Candidate


def guarded(tmp_path: Path, body: str, *args):
    """Violations and result of `fused(x, y)` with this body (line 1 of the body is line 2 of the file)."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    text = f"def fused(x, y):\n{lines}\n\nimport torch\n{PASS}"
    loaded = load_passes(Candidate({"P.py": text, MANIFEST: '["P"]'}), tmp_path)[0]
    guard = DispatchGuard(tmp_path)
    function = guard.wrap(loaded.replacement_func)
    with guard.active() as found:
        result = function(*args)
    return found, result


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
HONEST = [
    "return torch.empty_like(x)",
    "out = torch.empty((2, 3), dtype=torch.float16, device=x.device)\nout.fill_(1.0)\nreturn out.zero_()",
    "return torch.zeros(4), torch.ones(2), torch.full((2, 2), 7), torch.tensor([1.0]), x.new_full((2,), 3)",
    "return x.view(6, 4).t().transpose(0, 1).unsqueeze(0).squeeze(0).expand(6, 4).permute(1, 0)",
    "return x[0], x[..., 1:3], x[:, None], x.select(1, 0), x.flatten(), x.unflatten(0, (1, 2))",
    "return (*x.split(1, 0), *x.chunk(2, -1), *x.unbind(1)), x.unfold(2, 2, 1), x.detach()",
    "return x.permute(2, 1, 0).contiguous(), x.permute(2, 1, 0).reshape(-1), x.clone(), x.to(x.dtype), x.mT",
    "x.copy_(x.clone())\nreturn x",
    "return x.view(torch.int32), x.as_strided((2, 2), (1, 2)), x.is_contiguous(), x.stride(), x.data_ptr()",
    "n = x.numel() * 2 + x.shape[0]\nreturn torch.empty(n)[:0], torch.empty_strided((2, 2), (1, 2))",
]
COMPUTING = {
    "return x + y": "aten.add",
    "return -x": "aten.neg",
    "return x @ y.transpose(1, 2)": "aten.bmm",
    "return torch.relu(x)": "aten.relu",
    "return x.to(torch.float64)": "aten._to_copy",
    "return x.half()": "aten._to_copy",
    "return x.sum()": "aten.sum",
    "return x.item() if x.numel() == 1 else x.flatten()[0].item()": "aten._local_scalar_dense",
    "return x == y": "aten.eq",
    "x += y\nreturn x": "aten.add_",
    "out = torch.empty_like(x)\nout[:, 0] = x[:, 1]\nreturn out": "aten.copy_",
    "out = torch.empty(2, 3, 4, dtype=torch.float64)\nout.copy_(x)\nreturn out": "aten.copy_",
    "return torch.cat([x, y])": "aten.cat",
    "return torch.arange(4)": "aten.arange",
    "return torch.rand(4)": "aten.rand",
    "return torch.nn.functional.softmax(x, -1)": "aten._softmax",
    "return sum([x, y])": "aten.add",
    "return x[x > 0]": "aten.gt",
    "return x.repeat(2, 1, 1)": "aten.",
    "return torch.ops.aten.mul.Tensor(x, y)": "aten.mul",
    "return torch.conj(torch.view_as_complex(x.view(2, 3, 2, 2)))": "aten._conj",
    "x.resize_(3)\nreturn x": "aten.resize_",
    "x.set_(y)\nreturn x": "aten.set_",
}


@pytest.mark.parametrize("body", HONEST)
def test_allocation_views_and_metadata_pass(tmp_path, body):
    found, _ = guarded(tmp_path, body, X.clone(), X.clone())
    assert found == []


@pytest.mark.parametrize("body", COMPUTING)
def test_computing_operator_is_recorded(tmp_path, body):
    found, _ = guarded(tmp_path, body, X.clone(), X.clone())
    assert any(violation.message.startswith(COMPUTING[body]) for violation in found)
    assert {violation.rule for violation in found} == {"computing_operator"}
    assert {violation.file for violation in found} == {"P.py"}


def test_operator_still_runs_and_names_its_line_once(tmp_path):
    body = "a = torch.empty_like(x)\nfor _ in range(3):\n    z = x + y\nreturn z"
    found, result = guarded(tmp_path, body, X, X)
    assert torch.equal(result, X + X)
    (violation,) = found
    assert violation.line == 4
    assert "kernel" in violation.message


def test_line_of_a_helper_is_named(tmp_path):
    files = {
        "P.py": "from pass_dir.tools import double\nimport torch\n\ndef fused(x, y):\n    return double(x)\n"
        + PASS,
        "tools.py": "def double(x):\n\n    return x * 2\n",
        MANIFEST: '["P"]',
    }
    loaded = load_passes(Candidate(files), tmp_path)[0]
    guard = DispatchGuard(tmp_path)
    with guard.active() as found:
        guard.wrap(loaded.replacement_func)(X, X)
    assert [(violation.file, violation.line) for violation in found] == [("tools.py", 3)]


def test_function_of_torch_itself_is_recorded(tmp_path):
    guard = DispatchGuard(tmp_path)
    with guard.active() as found:
        guard.wrap(torch.add)(X, X)
    assert [violation.rule for violation in found] == ["computing_operator"]


def test_only_the_replaced_region_and_only_while_active(tmp_path):
    guard = DispatchGuard(tmp_path)
    function = guard.wrap(torch.add)
    with guard.active() as found:
        torch.add(X, X)
    function(X, X)
    assert found == []


def test_state_is_restored_after_an_error(tmp_path):
    guard = DispatchGuard(tmp_path)
    with pytest.raises(TypeError), guard.active():
        guard.wrap(torch.add)(X, None)
    with guard.active() as found:
        torch.add(X, X)
    assert found == []


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
from passagent.evaluator.guards.dispatch import DispatchGuard
from passagent.evaluator.passes import load_passes
from passagent.evaluator.result import Candidate

results = []
for number, files in enumerate(json.load(sys.stdin)):
    root = Path(sys.argv[1]) / str(number)
    root.mkdir()
    guard = DispatchGuard(root)
    function = guard.wrap(load_passes(Candidate(files), root)[0].replacement_func)
    x, y = torch.linspace(-2, 2, 96).reshape(8, 12), torch.ones(8, 12)
    with guard.active() as found:
        outs = [function(x, y) for _ in range(2)]
    right = all(torch.equal(out, torch.relu(x + y)) for out in outs)
    results.append({"right": right, "found": [v.model_dump() for v in found]})
print(json.dumps(results))
"""
CONFIGS = '[triton.Config({"BLOCK": b}) for b in (64, 128)]'
AUTOTUNE = f'@triton.autotune(configs={CONFIGS}, key=["n"], restore_value=["out_ptr"])\n@triton.jit'
GRID = '(lambda meta: (triton.cdiv(n, meta["BLOCK"]),))'


def test_triton_kernels_in_the_interpreter(tmp_path):
    tuned = HOST.replace("(triton.cdiv(n, 1024),)", GRID).replace(", BLOCK=1024", "")
    hook = "\n\ndef hook(args):\n    args['x_ptr'] + 1\n\n"
    sources = {
        "plain": HEAD + KERNEL + HOST,
        "autotuned": HEAD + KERNEL.replace("@triton.jit", AUTOTUNE) + tuned,
        "computing beside the kernel": HEAD + KERNEL + HOST.replace("(x, y, out, n", "(x * 1, y, out, n"),
        "computing in a hook of the autotuner": HEAD
        + hook
        + KERNEL.replace("@triton.jit", AUTOTUNE.replace('{"BLOCK": b}', '{"BLOCK": b}, pre_hook=hook'))
        + tuned,
        "computing in the grid": HEAD
        + KERNEL
        + tuned.replace("(lambda meta:", "(lambda meta: (x + 1) is None or").replace(
            "(x, y, out, n)", "(x, y, out, n, BLOCK=64)"
        ),
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
