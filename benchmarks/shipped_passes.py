"""What the passes that come with passagent are worth in whole models, beside what else a user may choose.

    python benchmarks/shipped_passes.py --only clip_vision:16 --out FILE.jsonl
    python benchmarks/shipped_passes.py --tell FILE.jsonl

Sixteen models of transformers and timm with random weights, in float16. Sides: eager, Inductor by default,
frozen (`torch._inductor.config.freezing`), in channels_last where there are convolutions, with all passes,
and with each pass alone. On a GPU each side is a CUDA graph that is captured by hand, on a CPU a call. All
sides take turns in blocks, in one process. `error`: the largest difference from a float32 run, over that of
Inductor's default. Each model runs in a process of its own. `--jobs` of them compile side by side; those that
are ready after `--compile-s` time one after the other, while the others stand still. Raw results are added to
the file, one line for each model.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

BLOCKS, BLOCK_S = 20, 0.02
BATCHES = (16, 1)
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_vision": ("CLIPVisionModel", {"patch_size": 16, "image_size": 224}),
    "dinov2_small": (
        "Dinov2Model",
        {"hidden_size": 384, "num_attention_heads": 6, "image_size": 224, "patch_size": 14},
    ),
    "whisper_encoder": (
        "WhisperModel",
        {
            "d_model": 512,
            "encoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
        },
    ),
    "siglip_vision": ("SiglipVisionModel", {}),
    "qwen3": (
        "Qwen3Model",
        {
            "num_hidden_layers": 8,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 1000,
        },
    ),
    "roberta": ("RobertaModel", {}),
    "roberta_unmasked": ("RobertaModel", {}),
    "llama": (
        "LlamaModel",
        {
            "num_hidden_layers": 8,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 1000,
        },
    ),
    "t5_encoder": ("T5EncoderModel", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "deberta_v2": (
        "DebertaV2Model",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256},
    ),
    "segformer_b0": ("SegformerModel", {}),
    "swinv2_tiny": ("Swinv2Model", {}),
}  # fmt: skip
"""Of transformers: the class, and what of its configuration is not the default."""
MASKED, UNMASKED = ("roberta", "deberta_v2", "qwen3"), ("roberta_unmasked", "llama", "t5_encoder")
"""Models of text that are given a mask of their tokens, and those that are not."""
TIMM = {"mixer_b16": "mixer_b16_224", "vit_base": "vit_base_patch16_224", "resnet50": "resnet50"}
LAST = "resnet50_channels_last"
NAMES = (*TRANSFORMERS, *TIMM, LAST)


class Called(torch.nn.Module):
    """A model that takes its inputs by place and returns its states alone."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The first thing that the model returns."""
        if not self.names:
            return self.model(*inputs)
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def model_of(name: str, batch: int, device: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model with random weights, and its inputs."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.float16
    if name in TRANSFORMERS:
        import transformers

        kind, sizes = TRANSFORMERS[name]
        model_class = getattr(transformers, kind)
        config = model_class.config_class(**sizes)
        config.use_cache = False
        model = model_class(config)
        if name == "whisper_encoder":
            model, names = model.encoder, ("input_features",)
            inputs = (torch.randn(batch, 80, 3000, device=device, dtype=dtype),)
        elif name in MASKED or name in UNMASKED:
            tokens = 512 if name in ("qwen3", "llama") else 256
            mask = torch.ones(batch, tokens, dtype=torch.long, device=device)
            if name != "qwen3":
                mask[:, tokens - tokens // 8 :] = 0
            names = ("input_ids", "attention_mask")[: 2 if name in MASKED else 1]
            inputs = (torch.randint(5, 1000, (batch, tokens), device=device), mask)[: len(names)]
        else:
            side = 512 if name == "segformer_b0" else 224
            names, inputs = (
                ("pixel_values",),
                (torch.randn(batch, 3, side, side, device=device, dtype=dtype),),
            )
    else:
        import timm

        model, names = timm.create_model(TIMM.get(name, "resnet50")), ()
        inputs = (torch.randn(batch, 3, 224, 224, device=device, dtype=dtype),)
    module = Called(model, names).eval().to(device, dtype)
    if name == LAST:
        module = module.to(memory_format=torch.channels_last)
        inputs = (inputs[0].to(memory_format=torch.channels_last),)
    return module, inputs


def in_graph(call: Callable[[], torch.Tensor], device: str) -> Callable[[], torch.Tensor]:
    """The call, on a GPU as a CUDA graph's replay."""
    if device == "cpu":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay(reads: Any = call) -> torch.Tensor:
        """`reads`: the graph reads what the call holds."""
        graph.replay()
        return output

    return replay


def measure(name: str, batch: int, device: str, alone: bool, wait: Callable[[], None]) -> dict[str, Any]:
    """The times of all sides of one model, us, and their gains over Inductor's default."""
    from passagent.packages.inductor_pass import passagent
    from passagent.packages.loading import package_of
    from passagent.packages.model_timing import _ratio
    from passagent.packages.rewriting import explain_model
    from passagent.passes import shipped
    from passagent.tasks.extract.model_capture import Model

    begun = time.monotonic()
    # no reset between the sides: a captured graph reads what a compiled side prepared
    torch._dynamo.config.recompile_limit = 64
    module, inputs = model_of(name, batch, device)
    explained = explain_model(Model(name, module, inputs), [package_of(Path(), shipped())])
    places: dict[str, int] = {}
    for site in explained.replaced:
        places[site.name] = places.get(site.name, 0) + 1
    has_convolution = any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
    sides: dict[str, Callable[[], torch.Tensor]] = {}
    failed: dict[str, str] = {}

    def add(side: str, make: Callable[[], Callable[[], torch.Tensor]]) -> None:
        try:
            sides[side] = in_graph(make(), device)
        except Exception as error:
            failed[side] = f"{type(error).__name__}: {error}"[:300]

    def with_passes(kept: list[Any]) -> Callable[[], torch.Tensor]:
        package = package_of(Path(), kept)
        run = torch.compile(module, backend=passagent, options={"passes": [package]}, dynamic=False)
        return lambda: run(*inputs)

    def default(
        called: Callable[..., torch.Tensor] = module, given: Any = inputs
    ) -> Callable[[], torch.Tensor]:
        run = torch.compile(called, dynamic=False)
        run(*given)
        return lambda: run(*given)

    with torch.no_grad():
        add("eager", lambda: lambda: module(*inputs))
        add("default", default)
        first_s = time.monotonic() - begun
        if places:
            fitting = [each for each in shipped() if each.name in places]
            add("passes", lambda: with_passes(fitting))
            first_s = time.monotonic() - begun
            for each in fitting if alone and len(fitting) > 1 else ():
                add(each.name, lambda each=each: with_passes([each]))
        if has_convolution and name != LAST:
            last = copy.deepcopy(module).to(memory_format=torch.channels_last)
            turned = tuple(v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for v in inputs)
            add("channels_last", lambda: default(last, turned))
        with torch._inductor.config.patch(freezing=True):
            frozen = copy.deepcopy(module)

            def forward(*given: torch.Tensor) -> torch.Tensor:
                """A function of its own: Dynamo would take the code that it has for the module's."""
                return frozen(*given)

            add("frozen", lambda: default(forward))
        exact = copy.deepcopy(module).float()(*(v.float() if v.is_floating_point() else v for v in inputs))
        errors = {side: float((call().float() - exact).abs().max()) for side, call in sides.items()}
        wait()
        blocks = times_of(sides, device)
    gains = {side: vars(_ratio(blocks["default"], blocks[side])) for side in sides}
    return {
        "model": f"{name}:{batch}", "device": device_name(device), "torch": str(torch.__version__),
        "places": places,
        "us": {side: float(np.median(np.concatenate(block))) / 1e3 for side, block in blocks.items()},
        "gains": gains, "error": {side: errors[side] / max(errors["default"], 1e-9) for side in sides},
        "failed": failed, "refused": [f"{r.name}: {r.reason}" for r in explained.refused if r.nodes],
        "first_s": round(first_s, 1), "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def times_of(sides: dict[str, Callable[[], torch.Tensor]], device: str) -> dict[str, list[list[int]]]:
    """Nanoseconds of calls, in blocks; sides take turns, each time in another order."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def timed(call: Callable[[], torch.Tensor]) -> int:
        wait()
        begun = time.perf_counter_ns()
        call()
        wait()
        return time.perf_counter_ns() - begun

    counts = {}
    for side, call in sides.items():
        took = min(timed(call) for _ in range(5))
        counts[side] = max(2, min(50, int(BLOCK_S * 1e9 / took)))
    random, blocks = np.random.default_rng(0), dict[str, list[list[int]]]()
    for _ in range(BLOCKS):
        for side in random.permutation(list(sides)).tolist():
            sides[side]()
            blocks.setdefault(side, []).append([timed(sides[side]) for _ in range(counts[side])])
    return blocks


def device_name(device: str) -> str:
    """The device in words."""
    from passagent.sandbox.environment import device_name as named

    return named(device)


def tell(path: Path) -> None:
    """Print the rows of a file, and their means."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for batch in BATCHES:
        some = [row for row in rows if row["model"].endswith(f":{batch}") and "gains" in row]
        over_default, over_best = [], []
        for row in some:
            gain = row["gains"].get("passes", {"ratio": 1.0, "low": 1.0, "high": 1.0})
            rivals = {
                s: row["gains"][s]["ratio"]
                for s in ("eager", "default", "frozen", "channels_last")
                if s in row["gains"]
            }
            best = max(rivals, key=rivals.__getitem__)
            alone = {name: row["gains"][name]["ratio"] for name in row["places"] if name in row["gains"]}
            over_default.append(max(gain["ratio"], 1.0))
            over_best.append(max(gain["ratio"], rivals[best]) / rivals[best])
            shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in alone.items())
            print(
                f"{row['model']:<26} default {row['us']['default']:>8.0f} us, passes {gain['ratio']:.3f} "
                f"({gain['low']:.3f} to {gain['high']:.3f}), best rival {best} {rivals[best]:.3f}, "
                f"error {row['error'].get('passes', 1.0):.2f}; {shown or row['places']}"
            )
        for words, ratios in (("default", over_default), ("best", over_best)):
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"batch {batch}: geometric mean over the {words} {mean:.3f} of {len(ratios)}")
    for row in rows:
        if "error_line" in row:
            print(f"{row['model']}: {row['error_line']}")


def main() -> None:
    """Measure the models that are asked for, each in a process, and add their rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", action="append", metavar="MODEL:BATCH")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile side by side")
    parser.add_argument("--compile-s", type=float, default=600)
    parser.add_argument("--alone", action="store_true", help="time each pass alone, too")
    parser.add_argument("--out", type=Path, default=Path("shipped-passes.jsonl"))
    parser.add_argument("--tell", type=Path)
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tell:
        return tell(given.tell)
    keys = given.only or [f"{name}:{batch}" for batch in BATCHES for name in NAMES]
    if given.step:
        return step(given, keys[0])
    waiting, begun = list(keys), time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        running = {key: process for key, process in running.items() if process.poll() is None}
        while waiting and len(running) < given.jobs:
            key = waiting.pop(0)
            words = [sys.executable, sys.argv[0], "--step", "--only", key, "--device", given.device]
            words += ["--out", str(given.out), *(["--alone"] if given.alone else [])]
            running[key] = subprocess.Popen(words)
        ready = [key for key in running if mark(given.out, key, "ready").exists()]
        if ready and (len(ready) == len(running) or time.monotonic() > begun + given.compile_s):
            others = [process for key, process in running.items() if key not in ready]
            for process in others:
                process.send_signal(signal.SIGSTOP)
            for key in ready:
                mark(given.out, key, "go").touch()
                running.pop(key).wait()
            for process in others:
                process.send_signal(signal.SIGCONT)
            begun = time.monotonic()
        time.sleep(0.2)
    return tell(given.out)


def mark(out: Path, key: str, word: str) -> Path:
    """The file by which a process says that it is ready, or is told to go on."""
    return out.with_name(f"{out.name}.{key.replace(':', '-')}.{word}")


def step(given: argparse.Namespace, key: str) -> None:
    """Measure one model, and add its row to the file."""
    name, _, batch = key.partition(":")

    def wait() -> None:
        mark(given.out, key, "ready").touch()
        while not mark(given.out, key, "go").exists():
            time.sleep(0.05)

    try:
        row = measure(name, int(batch), given.device, given.alone, wait)
    except Exception as error:
        row = {"model": key, "error_line": f"{type(error).__name__}: {error}"[:300]}
    for word in ("ready", "go"):
        mark(given.out, key, word).unlink(missing_ok=True)
    with given.out.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
