"""Regions of models that no page names, as tasks for benchmarks/graph_dispatch.py.

    python benchmarks/unseen_regions.py --out DIR --jobs 6
    python benchmarks/graph_dispatch.py DIR --subgraphs 122

Models of timm and transformers are drawn by a fixed seed, with random weights, in float16, batch 4. Deep
models of transformers are cut to two layers, whose regions are those of all. `passagent extract --regions` of
this file writes each model's regions; a model that cannot be built or captured is named and left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SEED = 54
BATCH, TOKENS = 4, 256
MOST = 1 << 30
"""Parameters of a model."""
LONGEST_S = 150
"""That one model may take."""


def drawn(count: int) -> list[str]:
    """Names, by turns of timm and transformers; those that the documents or benchmarks name are left out."""
    import timm
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    root = Path(__file__).parents[1]
    pages = [*root.glob("docs/*.md"), root / "README.md", *root.glob("benchmarks/*.py")]
    named = "".join(page.read_text() for page in pages).lower()
    of_transformers = {c for c in MODEL_MAPPING_NAMES.values() if isinstance(c, str)}
    pools = []
    for pool in (timm.list_models(), sorted(of_transformers)):
        unknown = [n for n in pool if n.removesuffix("Model").split("_")[0].lower() not in named]
        pools.append(random.Random(SEED).sample(unknown, min(len(unknown), count)))
    return [name for pair in zip(*pools, strict=False) for name in pair][:count]


def __getattr__(name: str) -> Callable[[], tuple[torch.nn.Module, Any]]:
    """The factory of a model, for `passagent extract`."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda: model_of(name)


def model_of(name: str) -> tuple[torch.nn.Module, Any]:
    """A model and its inputs."""
    import timm
    import transformers

    torch.manual_seed(0)
    if timm.is_model(name):
        with torch.device("meta"):
            small(timm.create_model(name))
        model = timm.create_model(name).cuda().half().eval()
        return model, (torch.randn(BATCH, *model.default_cfg["input_size"]).cuda().half(),)
    model_class = getattr(transformers, name)
    config = model_class.config_class()
    config.use_cache = False
    for key in ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers"):
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, 2)
    with torch.device("meta"):
        small(model_class(config))
    model = model_class(config).cuda().half().eval()
    if model.main_input_name == "pixel_values":
        side = config.image_size if isinstance(config.image_size, int) else 224
        return model, {"pixel_values": torch.randn(BATCH, 3, side, side).cuda().half()}
    ids = torch.randint(5, 1000, (BATCH, TOKENS)).cuda()
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def small(model: torch.nn.Module) -> None:
    """Refuse a model of more than MOST parameters."""
    count = sum(p.numel() for p in model.parameters())
    if count > MOST:
        sys.exit(f"{count / 1e9:.1f} billion parameters")


def extracted(name: str, out: Path) -> str:
    """What came of one model."""
    began = time.monotonic()
    command = [sys.executable, "-m", "passagent", "extract", f"{__file__}:{name}", "--regions", "--out"]
    try:
        done = subprocess.run(
            [*command, str(out / name)], capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not extracted after {LONGEST_S} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1][:160]
    found = sum((place / "graph_list.txt").exists() for place in (out / name).iterdir())
    return f"{found} regions in {time.monotonic() - began:.0f} s"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=4, help="models side by side")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    names = drawn(args.models)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, word in zip(names, pool.map(lambda n: extracted(n, args.out), names), strict=True):
            print(f"{name:44} {word}", flush=True)


if __name__ == "__main__":
    main()
