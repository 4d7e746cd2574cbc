"""Attention with a bias on a GPU, as models write it: the expert, TorchInductor and PyTorch's kernels.

    python benchmarks/attention.py --jobs 12 --budget 90 --out FILE
    python benchmarks/attention.py --only t5 swin --plans 1024/0/3 2048/8/2

The region goes from what the projections give to what the last projection takes: bert-base and a T5 encoder
with 128 tokens, window attention of swin_tiny's first and third stage with and without the mask of shifted
windows, as one call of `scaled_dot_product_attention` and in its mathematical form; batch 1 and 16, fp16.
Then BERT in other types, grouped heads, and calls without a bias.
Each side is captured as a CUDA graph of 20 calls, and replays of all sides alternate (see graph_sides.py):

- eager
- Inductor (the faster of two draws)
- the expert, with each of the plans (block/warps/stages); the first one is its first draft
- the call with each back end that accepts the bias, of the same region; and the call alone, of operands and a
  bias that are prepared

First `--jobs` processes compile all sides. `error` is the mean square distance from float64 beside eager's.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evaluator_repeatability import keep
from graph_sides import DEVICE, DRAWS, Call, facts, graph_of_calls, inductor, timed
from torch.nn.attention import SDPBackend, sdpa_kernel

from passagent.evaluator.matching.loaded_passes import load_passes
from passagent.evaluator.matching.rewrite import apply_passes
from passagent.evaluator.result import Candidate
from passagent.expert.author import author
from passagent.expert.choices import Plan, default
from passagent.tasks.capture import capture

CALLS = 20
TOKENS, HEADS, WIDE = 128, 12, 64
BACKENDS = {
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
PLANS = (
    "1024/0/3",
    "512/0/3",
    "2048/0/3",
    "4096/0/3",
    "1024/8/2",
    "1024/2/2",
    "512/2/2",
    "256/2/2",
    "256/1/1",
)
"""block/warps/stages."""
Tensor = torch.Tensor
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def by_call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=grouped)


def by_causal_call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


def by_math(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    assert bias is not None
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = scores if scale == 1.0 else scores * scale
    return torch.matmul(F.softmax(scores + bias, dim=-1), v)


def merged(result: Tensor) -> Tensor:
    batch, heads, tokens, wide = result.shape
    return result.transpose(1, 2).reshape(batch, tokens, heads * wide)


class Encoder(torch.nn.Module):
    """Projections of queries, keys and values, and the bias over heads, queries and keys if one is given."""

    def __init__(self, attend: Attend, scale: float, wide: int = WIDE) -> None:
        super().__init__()
        self.attend, self.scale, self.wide = attend, scale, wide

    def operands(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Any, ...]:
        batch, tokens, _ = q.shape
        split = (x.view(batch, tokens, -1, self.wide).transpose(1, 2) for x in (q, k, v))
        return (*split, None if bias is None else bias.expand(batch, -1, tokens, tokens))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return merged(self.attend(*self.operands(q, k, v, bias), self.scale))


class Windows(torch.nn.Module):
    """One projection, and of swin's windows the relative bias and the mask of shifted windows."""

    def __init__(self, attend: Attend, heads: int) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads

    def operands(
        self, x: Tensor, bias: Tensor | None = None, shifted: Tensor | None = None
    ) -> tuple[Any, ...]:
        windows, tokens, heads = x.shape[0], x.shape[1], self.heads
        q, k, v = x.reshape(windows, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = None if bias is None else bias.unsqueeze(0)
        if bias is not None and shifted is not None:
            kinds = shifted.shape[0]
            wide = shifted.view(1, kinds, 1, tokens, tokens).expand(windows // kinds, -1, heads, -1, -1)
            bias = bias + wide.reshape(-1, heads, tokens, tokens)
        return q, k, v, bias

    def forward(self, x: Tensor, bias: Tensor | None = None, shifted: Tensor | None = None) -> Tensor:
        scale = (x.shape[2] // self.heads // 3) ** -0.5
        return merged(self.attend(*self.operands(x, bias, shifted), scale))


def cases() -> dict[str, tuple[Callable[[Attend], Any], Attend, list[Tensor]]]:
    """Of each case its module, how it attends, and its inputs on the CPU."""
    torch.manual_seed(0)
    found: dict[str, tuple[Callable[[Attend], Any], Attend, list[Tensor]]] = {}
    for batch in (1, 16):
        qkv = [torch.randn(batch, TOKENS, HEADS * WIDE).half() for _ in range(3)]
        padded = torch.zeros(batch, 1, 1, TOKENS).half()
        padded[:, :, :, TOKENS - 20 :] = -65504.0
        relative = torch.randn(batch, HEADS, TOKENS, TOKENS).half()
        for form, attend in (("call", by_call), ("math", by_math)):
            bert, t5 = (lambda a: Encoder(a, 0.125)), (lambda a: Encoder(a, 1.0))
            found[f"bert {form}, {batch}"] = bert, attend, [*qkv, padded]
            found[f"t5 {form}, {batch}"] = t5, attend, [qkv[0] / 8, *qkv[1:], relative]
            for stage, heads, kinds in ((1, 3, 64), (3, 12, 4)):
                windows = [
                    torch.randn(batch * kinds, 49, 96 * heads).half(),
                    torch.randn(heads, 49, 49).half(),
                ]
                shifted = torch.where(torch.rand(kinds, 49, 49) < 0.3, -100.0, 0.0).half()

                def swin(a: Attend, heads: int = heads) -> Windows:
                    return Windows(a, heads)

                found[f"swin {stage} {form}, {batch}"] = swin, attend, windows
                found[f"swin {stage} shifted {form}, {batch}"] = swin, attend, [*windows, shifted]
    found |= others()
    return found


def others() -> dict[str, tuple[Callable[[Attend], Any], Attend, list[Tensor]]]:
    """Other types, groups of heads, and calls without a bias, which the library's fastest kernels take."""
    found: dict[str, tuple[Callable[[Attend], Any], Attend, list[Tensor]]] = {}
    for batch in (1, 16):
        qkv = [torch.randn(batch, TOKENS, HEADS * WIDE) for _ in range(3)]
        padded = torch.zeros(batch, 1, 1, TOKENS)
        padded[:, :, :, TOKENS - 20 :] = -1e4
        for dtype in (torch.bfloat16, torch.float32):
            for form, attend in (("call", by_call), ("math", by_math)):
                given = [x.to(dtype) for x in (*qkv, padded)]
                name = f"bert {str(dtype).removeprefix('torch.')} {form}, {batch}"
                found[name] = (lambda a: Encoder(a, 0.125)), attend, given
        sizes = (512, 4096), (512, 1024), (512, 1024)
        grouped = [torch.randn(batch, *size).half() for size in sizes]
        causal = torch.full((1, 1, 512, 512), -65504.0).triu(1).half()
        found[f"grouped masked, {batch}"] = (lambda a: Encoder(a, 0.088, 128)), by_call, [*grouped, causal]
        plain = [torch.randn(batch, 197, 3 * 384).half()]
        found[f"vit no bias, {batch}"] = (lambda a: Windows(a, 6)), by_call, plain
        for tokens in (128, 1024):
            long = [torch.randn(batch, tokens, HEADS * WIDE).half() for _ in range(3)]
            found[f"gpt2 causal {tokens}, {batch}"] = (lambda a: Encoder(a, 0.125)), by_causal_call, long
    return found


def plan_of(text: str) -> Plan:
    block, warps, stages = map(int, text.split("/"))
    base = default("cuda")
    return Plan(**{**vars(base), "block": block, "warps": warps, "stages": stages})


def sides_of(
    name: str, plans: list[str], stack: ExitStack
) -> tuple[dict[str, Call], dict[str, list[Tensor]]]:
    """The sides of a case and their arguments."""
    make, attend, inputs = cases()[name]
    given = [x.to(DEVICE) for x in inputs]
    library = by_call if attend is by_math else attend
    module, called = make(attend), make(library)
    graph = capture(module, inputs).graph_module.graph
    found = capture(module, given)
    args = [given[k] for k in found.order]
    sides: dict[str, Call] = {"eager": found.graph_module.forward}
    for text in plans:
        files = author([graph], "cuda", plan_of(text)).files
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rewritten = apply_passes(copy.deepcopy(found.graph_module), load_passes(Candidate(files), scratch))
        if rewritten.applied:
            sides[f"expert {text}"] = rewritten.graph_module.forward
    for draw in DRAWS:
        sides[draw] = inductor(found.graph_module, args)
    arguments = dict.fromkeys(sides, args)
    operands = [None if x is None else x.contiguous() for x in called.operands(*given)]
    scale = getattr(called, "scale", operands[0].shape[-1] ** -0.5)
    for backend, which in BACKENDS.items():
        for side, function, own in (
            (f"{backend} region", called, given),
            (f"{backend} alone", lambda *x: library(*x, scale), operands),
        ):

            def call(*x: Tensor, function: Call = function, which: SDPBackend = which) -> Any:
                with sdpa_kernel(which):
                    return function(*x)

            sides[side], arguments[side] = call, own
    return sides, arguments


def works(call: Call, args: list[Tensor]) -> str:
    """Why a side does not run; empty: it does."""
    try:
        call(*args)
        torch.cuda.synchronize()
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]


def prepared(asked: tuple[str, list[str]]) -> None:
    """Compile a case's sides into the caches on disk."""
    with ExitStack() as stack, torch.no_grad():
        sides, arguments = sides_of(*asked, stack)
        for side, call in sides.items():
            works(call, arguments[side])


def measured(name: str, plans: list[str]) -> dict[str, Any]:
    """The row of a case."""
    with ExitStack() as stack, torch.no_grad():
        sides, arguments = sides_of(name, plans, stack)
        failed = {side: why for side, call in sides.items() if (why := works(call, arguments[side]))}
        sides = {side: call for side, call in sides.items() if side not in failed}
        make, attend, inputs = cases()[name]
        exact = make(attend)(*(x.to(DEVICE).double() for x in inputs))
        errors = {}
        for side, call in sides.items():
            result = call(*arguments[side])
            result = result[0] if isinstance(result, tuple | list) else result
            if result.shape == exact.shape:
                errors[side] = (result.double() - exact).square().mean().sqrt().item()
        made = {side: graph_of_calls(call, arguments[side], CALLS) for side, call in sides.items()}
        samples = timed({side: graph for side, (graph, _) in made.items()}, CALLS)
    row = {side: round(statistics.median(values), 3) for side, values in samples.items()}
    kernels = {side: count for side, (_, count) in made.items()}
    return {"us": row, "kernels": kernels, "error": errors, "failed": failed}


def best(us: dict[str, float], word: str) -> tuple[float, str]:
    """The fastest side with the word in its name."""
    return min(((t, side) for side, t in us.items() if word in side), default=(math.nan, ""))


def line(name: str, row: dict[str, Any]) -> str:
    """A case's line in the table."""
    us, errors = row["us"], row["error"]
    first = next((side for side in us if side.startswith("expert")), "")
    inductor_us, ours = best(us, "inductor")[0], us.get(first, math.nan)
    tuned, which = best(us, "expert")
    region, alone = best(us, "region"), best(us, "alone")
    return (
        f"{name:26} {us['eager']:8.2f} {inductor_us:8.2f} {ours:8.2f} {inductor_us / ours:6.2f} "
        f"{tuned:8.2f} {which.removeprefix('expert '):9} {inductor_us / tuned:6.2f} "
        f"{region[0]:8.2f} {alone[0]:8.2f} {alone[1].split(' ')[0]:10} {alone[0] / tuned:6.2f} "
        f"{errors.get(first, math.nan) / errors['eager']:6.2f}"
    )


HEAD = (
    f"{'us a call':26} {'eager':>8} {'Inductor':>8} {'expert':>8} {'ratio':>6} {'tuned':>8} {'plan':9} "
    f"{'ratio':>6} {'region':>8} {'alone':>8} {'back end':10} {'ratio':>6} {'error':>6}"
)


def mean(ratios: list[float]) -> float:
    return math.exp(statistics.mean(map(math.log, ratios))) if ratios else math.nan


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="words of the cases' names")
    parser.add_argument("--plans", nargs="*", default=list(PLANS), help="block/warps/stages")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of measuring")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    names = [n for n in cases() if not args.only or any(word in n for word in args.only)]
    begun = time.monotonic()
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(prepared, [(name, args.plans) for name in names]))
    print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
    begun, rows = time.monotonic(), dict[str, Any]()
    print(HEAD)
    for name in names:
        if time.monotonic() - begun > args.budget:
            print(f"{name}: no time is left")
            continue
        rows[name] = measured(name, args.plans)
        print(line(name, rows[name]), flush=True)
    for form in ("call", "math", "masked", "no bias", "causal"):
        found = [row["us"] for name, row in rows.items() if f" {form}" in name]
        first = f"expert {args.plans[0]}"
        ratios = [best(us, "inductor")[0] / us[first] for us in found if first in us]
        print(f"{form}: Inductor / expert, geometric mean {mean(ratios):.3f} of {len(ratios)}")
    print("written to", keep("attention", "cuda", args.out, {"machine": facts(), "rows": rows}))


if __name__ == "__main__":
    main()
