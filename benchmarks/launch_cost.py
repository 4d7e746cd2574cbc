"""What a call costs where the host decides: eager operators, Triton and passagent.kernels on a small tensor.

    python benchmarks/launch_cost.py --device cuda

silu(a) * b on 1x128x768, allocation of the result included. Each side is called in blocks of ten, the blocks
of all sides interleaved in random order. `issue` is the time until the call returns, `e2e` until its result
is there; medians in microseconds. Raw samples go to benchmarks/results/launch-cost-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from passagent.kernels import cpp_kernel, cuda_kernel
from passagent.sandbox.environment import describe

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 10
CPP = """
template <class T> void silu_mul(T* out, const T* a, const T* b, int64_t n) {
#pragma omp parallel for simd if (n > 32768)
  for (int64_t i = 0; i < n; ++i) {
    const float x = a[i];
    out[i] = T(round_to<T>(x / (1.0f + expf(-x))) * float(b[i]));
  }
}"""
CUDA = """
template <class T> __global__ void silu_mul(T* out, const T* a, const T* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  out[i] = T(round_to<T>(x / (1.0f + expf(-x))) * float(b[i]));
}"""

Side = Callable[[torch.Tensor, torch.Tensor], object]


def eager_sides() -> dict[str, Side]:
    """Nothing, an allocation, one operator, two operators."""
    return {
        "nothing": lambda a, b: None,
        "empty_like": lambda a, b: torch.empty_like(a),
        "eager, 1 operator": torch.mul,
        "eager, 2 operators": lambda a, b: torch.nn.functional.silu(a) * b,
        "eager, 3 operators": lambda a, b: torch.nn.functional.silu(a) * b + a,
    }


def cpu_sides() -> dict[str, Side]:
    """cpp_kernel, with and without its allocation."""
    kernel, kept = cpp_kernel(CPP, "silu_mul"), torch.empty(0)

    def fused(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        kernel(out, a, b, a.numel())
        return out

    return {"cpp_kernel": fused, "cpp_kernel on no elements": lambda a, b: kernel(kept.to(a.dtype), a, b, 0)}


def cuda_sides(shape: torch.Size, dtype: torch.dtype) -> dict[str, Side]:
    """cuda_kernel, triton_kernel and Triton's `kernel[grid]`, with allocation and cuda_kernel without."""
    from silu_mul_triton import launch, planned

    kept = torch.empty(shape, dtype=dtype, device="cuda")
    kernel = cuda_kernel(CUDA, "silu_mul")[(shape.numel() + 255) // 256, 256]

    def fused(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        kernel(out, a, b, a.numel())
        return out

    return {
        "cuda_kernel": fused,
        "cuda_kernel without allocation": lambda a, b: kernel(kept, a, b, a.numel()),
        "triton_kernel": planned,
        "Triton kernel[grid]": launch,
    }


def measure(sides: dict[str, Side], device: str, dtype: torch.dtype, rounds: int) -> dict[str, dict]:
    """Samples in ns of every side: `issue` and `e2e`, one of each for a call."""
    a, b = (torch.randn(1, 128, 768, device=device).to(dtype) for _ in range(2))
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    clock = time.perf_counter_ns
    samples: dict[str, dict] = {name: {"issue": [], "e2e": []} for name in sides}
    want = sides["eager, 2 operators"](a, b)
    for name in ("cpp_kernel", "cuda_kernel", "triton_kernel", "Triton kernel[grid]"):
        if name in sides:
            torch.testing.assert_close(sides[name](a, b), want, rtol=1e-2, atol=1e-2)
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            call, kept = sides[name], samples[name]
            for number in range(2 * BLOCK):
                wait()
                start = clock()
                call(a, b)
                issued = clock()
                wait()
                done = clock()
                if number >= BLOCK:  # the first half of a block warms caches up
                    kept["issue"].append(issued - start)
                    kept["e2e"].append(done - start)
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    torch.set_grad_enabled(False)
    own = cuda_sides(torch.Size([1, 128, 768]), dtype) if args.device.startswith("cuda") else cpu_sides()
    samples = measure(eager_sides() | own, args.device, dtype, args.rounds)
    print(f"{'what':34} {'issue us':>9} {'e2e us':>9}")
    for name, taken in samples.items():
        issue, e2e = (statistics.median(taken[kind]) / 1e3 for kind in ("issue", "e2e"))
        print(f"{name:34} {issue:9.2f} {e2e:9.2f}")
    today = datetime.date.today().isoformat()
    out = args.out or ROOT / f"benchmarks/results/launch-cost-{args.device.replace(':', '')}-{today}.json"
    command = " ".join(["python", *(Path(word).name for word in sys.argv)])
    head = {"command": command, "date": today, "dtype": args.dtype}
    environment = describe(args.device, torch.get_num_threads())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(head | {"environment": environment, "samples_ns": samples}) + "\n")


if __name__ == "__main__":
    main()
