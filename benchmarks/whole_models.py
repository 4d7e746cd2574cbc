"""What passes are worth in whole models that nobody here wrote: `passagent optimize`, then all sides in turn.

    python benchmarks/whole_models.py --minutes 4 --work DIR
    python benchmarks/whole_models.py --only bert_base:16 --work DIR    # one; the same call again goes on
    python benchmarks/whole_models.py --device cpu --small --work DIR   # tiny models in float32: a trial
    python benchmarks/whole_models.py --work DIR --tell                 # only the rows that are there

Six models of transformers with random weights, in float16, with 128 tokens (of which 16 are padding) or
images of 224x224, batch 1 and 16; or those of shipped_passes.py, by `--only`. For each, in processes of its
own: the expert's passes are searched for `--minutes` at most and packaged, with one library for all models.
Then a fresh process times eager, and eager and Inductor in a CUDA graph, the latter with and without the
package (`passagent measure`: blocks of calls take turns). With `--profile` another one profiles the kernels
of the last two. What is done is kept in DIR, so a call that ends early can be repeated, and several calls may
work in it side by side. Without a package the ratio is 1: the model is left to Inductor.

Raw results go to benchmarks/results/whole-models-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import shipped_passes
import torch
from evaluator_repeatability import keep

TOKENS, IMAGE = 128, 224
PROFILED = 10
"""Calls."""
BATCHES = (1, 16)
MODELS = {
    "bert_base": ("BertModel", {}),
    "gpt2": ("GPT2Model", {}),
    "t5_encoder": ("T5EncoderModel", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "vit_small": (
        "ViTModel",
        {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6},
    ),
    "convnext_tiny": ("ConvNextModel", {}),
    "swin_tiny": ("SwinModel", {}),
}
"""Of transformers: the class, and what of its configuration is not the default."""
SMALL: dict[str, dict[str, Any]] = {
    "bert_base": {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 2},
    "gpt2": {"n_embd": 192, "n_layer": 2},
    "t5_encoder": {"d_model": 192, "d_ff": 768, "num_layers": 2},
    "vit_small": {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 2},
    "convnext_tiny": {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]},
    "swin_tiny": {"embed_dim": 24, "depths": [1, 1, 1, 1]},
}


class _Called(torch.nn.Module):
    """A model as it is deployed: with the mask of a batch that is padded; of its answer the states alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.model(x)[0] if mask is None else self.model(x, attention_mask=mask)[0]


def model_of(name: str, batch: int, device: str, small: bool) -> tuple[Any, tuple[Any, ...]]:
    """A model with random weights, and its inputs."""
    import transformers

    if name not in MODELS:
        return shipped_passes.model_of(name, batch, device)
    torch.manual_seed(0)
    kind, sizes = MODELS[name]
    made = getattr(transformers, kind)
    config = made.config_class(**sizes | (SMALL[name] if small else {}))
    config.use_cache = False
    dtype = torch.float32 if device == "cpu" else torch.float16
    module = _Called(made(config)).eval().to(device, dtype)
    if name in ("bert_base", "gpt2", "t5_encoder"):
        mask = torch.ones(batch, TOKENS, dtype=torch.long, device=device)
        mask[:, TOKENS - TOKENS // 8 :] = 0
        return module, (torch.randint(0, 1000, (batch, TOKENS), device=device), mask)
    return module, (torch.randn(batch, 3, IMAGE, IMAGE, device=device, dtype=dtype),)


def optimize(given: argparse.Namespace, name: str, batch: int, place: Path) -> dict[str, Any]:
    """What the search came to. Runs in a process of its own."""
    import passagent as pa

    module, inputs = model_of(name, batch, given.device, given.small)
    begun = time.monotonic()
    progress: list[str] = []

    def note(line: str) -> None:
        progress.append(f"{time.monotonic() - begun:.0f} s: {line}")
        print(line, file=sys.stderr, flush=True)

    found = pa.optimize(
        module, *inputs, out=place / "package", model="expert", max_time=60 * given.minutes,
        state=place / "state", library=given.work / "library.db",
        settings={"evaluator.device": given.device}, on_progress=note,
    )  # fmt: skip
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "progress": progress,
        "package": str(found.package) if found.package else None,
        "why_not": found.why_not,
        "regions": [
            {key: getattr(one, key) for key in ("name", "count", "outcome", "why", "inductor_us", "pass_us")}
            for one in found.regions
        ],
    }


def measure(given: argparse.Namespace, name: str, batch: int, package: str) -> dict[str, Any]:
    """The sides' times and the package's gain. Runs in a process of its own."""
    import passagent as pa

    module, inputs = model_of(name, batch, given.device, given.small)
    modes = ["default"] if given.device == "cpu" else ["cuda-graph"]
    return pa.measure(module, *inputs, passes=package, modes=modes).data()


def profile(given: argparse.Namespace, name: str, batch: int, package: str) -> dict[str, Any]:
    """Which kernels take the time of a call, without and with the package. Runs in a process of its own."""
    from torch.profiler import ProfilerActivity

    module, inputs = model_of(name, batch, given.device, given.small)
    on_cpu = given.device == "cpu"
    activity = ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA
    took = f"self_{'cpu' if on_cpu else 'device'}_time_total"
    found: dict[str, Any] = {}
    with_passes = {"backend": "passagent", "options": {"passes": str(package)}}
    for side, how in (("inductor", {}), ("inductor + passes", with_passes)):
        torch._dynamo.reset()
        compiled = torch.compile(module, dynamic=False, **how)
        with torch.no_grad():
            for _ in range(3):
                compiled(*inputs)
            with torch.profiler.profile(activities=[activity]) as seen:
                for _ in range(PROFILED):
                    compiled(*inputs)
                if not on_cpu:
                    torch.cuda.synchronize()
        kernels = sorted(
            (getattr(event, took) / PROFILED, event.count / PROFILED, event.key[:100])
            for event in seen.key_averages()
            if getattr(event, took)
        )
        largest = [{"us": round(us, 1), "calls": calls, "kernel": key} for us, calls, key in kernels[:-16:-1]]
        found[side] = {"us": round(sum(us for us, _, _ in kernels), 1), "largest": largest}
    return found


def in_a_process(given: argparse.Namespace, step: str, key: str, *more: str) -> dict[str, Any]:
    """What a step of one model prints last, as JSON; `error`: why it did not come to its end."""
    words = [sys.executable, __file__, "--step", step, "--only", key, *more, "--work", str(given.work)]
    words += [
        "--device",
        given.device,
        "--minutes",
        str(given.minutes),
        *(["--small"] if given.small else []),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": _reason(done.stderr)}
    return dict(json.loads(done.stdout.split("\n")[-2]))


def _reason(stderr: str) -> str:
    """The last line that begins with an exception's name, else the last line."""
    lines = stderr.strip().split("\n")
    return next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception): ", line)), lines[-1])


def row_file(given: argparse.Namespace, key: str) -> Path:
    """Where one model's figures are kept."""
    return Path(given.work, f"{key.replace(':', '-')}.json")


def row_of(given: argparse.Namespace, key: str) -> dict[str, Any]:
    """One model's figures; those that are there already are read."""
    file = row_file(given, key)
    if file.exists():
        return dict(json.loads(file.read_text()))
    row: dict[str, Any] = {"model": key, "optimize": in_a_process(given, "optimize", key)}
    if package := row["optimize"].get("package"):
        row["measure"] = in_a_process(given, "measure", key, "--package", package)
    if package and given.profile:
        row["profile"] = in_a_process(given, "profile", key, "--package", package)
    if not any("error" in row.get(step, {}) for step in ("optimize", "measure")):
        file.write_text(json.dumps(row))
    return row


def gain_of(row: dict[str, Any]) -> dict[str, float] | None:
    """Inductor against Inductor with the package; None where something failed."""
    if any("error" in row.get(step, {}) for step in ("optimize", "measure")):
        return None
    if "measure" not in row:
        return {"ratio": 1.0, "low": 1.0, "high": 1.0}
    return dict(next(iter(row["measure"]["gains"].values())))


def table(rows: list[dict[str, Any]]) -> None:
    """Print the rows, and what they come to."""
    for row in rows:
        gain, sides = gain_of(row), row.get("measure", {}).get("us", {})
        shown = ", ".join(f"{side} {us / 1e3:.3f} ms" for side, us in sides.items())
        said = (
            row["optimize"].get("error") or row.get("measure", {}).get("error") or row["optimize"]["why_not"]
        )
        ratio = f"{gain['ratio']:.3f} ({gain['low']:.3f} to {gain['high']:.3f})" if gain else "failed"
        print(f"{row['model']:<18} {ratio}  {shown or said}")
    gains = [gain for row in rows if (gain := gain_of(row))]
    if gains:
        mean = math.exp(sum(math.log(gain["ratio"]) for gain in gains) / len(gains))
        held = sum(gain["high"] >= 1 for gain in gains)
        packed = sum(bool(row["optimize"].get("package")) for row in rows)
        print(f"geometric mean {mean:.3f} of {len(gains)}; not slower {held}; with a package {packed}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=4, help="of search for each model")
    parser.add_argument("--only", action="append", metavar="MODEL:BATCH")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tell", action="store_true", help="measure nothing: the rows that DIR has")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the file of raw results; default: in benchmarks/results")
    parser.add_argument("--step", choices=["optimize", "measure", "profile"], help=argparse.SUPPRESS)
    parser.add_argument("--package", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work = given.work.absolute()
    given.work.mkdir(parents=True, exist_ok=True)
    keys = given.only or [f"{name}:{batch}" for name in MODELS for batch in BATCHES]
    if given.tell:
        names = (*MODELS, *shipped_passes.NAMES)
        known = [f"{name}:{batch}" for batch in BATCHES for name in names]
        keys = [key for key in known if row_file(given, key).exists()]
    if given.step:
        name, _, batch = keys[0].partition(":")
        place = given.work / keys[0].replace(":", "-")
        place.mkdir(exist_ok=True)
        if given.step == "optimize":
            print(json.dumps(optimize(given, name, int(batch), place)))
        elif given.step == "profile":
            print(json.dumps(profile(given, name, int(batch), given.package)))
        else:
            print(json.dumps(measure(given, name, int(batch), given.package)))
        return
    before, rows = os.getloadavg()[0], []
    for key in keys:
        rows.append(row_of(given, key))
        table(rows[-1:])
    table(rows)
    keep("whole-models", given.device, given.out, {"load_before": before, "small": given.small, "rows": rows})


if __name__ == "__main__":
    main()
