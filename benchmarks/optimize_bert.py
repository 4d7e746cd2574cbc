"""From a BERT to its package with `passagent optimize` and the expert: how long, and how much faster it is.

    python benchmarks/optimize_bert.py [--minutes 10] [--work DIR]
    python benchmarks/optimize_bert.py --package DIR     # only times a package that is there

The model is examples/optimize_bert/bert.py, in an environment that has transformers
(checks/environments/models.txt). The command runs as a person types it, with a library of its own that is
empty. Then the package, if there is one, is timed once more beside Inductor in a fresh process, once with all
cores and once with one thread: blocks of calls take turns, as `passagent measure` does it. `cpu_ratio` is of
the processor's time of the same blocks with one thread, which other programs disturb less.

Raw results go to benchmarks/results/optimize-bert-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep

from passagent.sandbox.environment import device_name

ROOT = Path(__file__).resolve().parents[1]
FACTORY = f"{ROOT / 'examples/optimize_bert/bert.py'}:bert"
BLOCKS, CALLS = 60, 20


def python_of_models() -> str:
    """An interpreter that has transformers."""
    sys.path.insert(0, str(ROOT / "checks"))
    from environments import python_of

    return str(python_of("models"))


def optimized(python: str, work: Path, minutes: float) -> dict[str, Any]:
    """What the command came to, and how long it took, s."""
    words = [python, "-m", "passagent", "optimize", FACTORY, "--out", str(work / "my_passes"), "--json"]
    words += ["--max-time", f"{minutes}m", "--library", str(work / "library.db"), "--model", "expert"]
    begun = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=work)
    return {"seconds": time.monotonic() - begun, **json.loads(done.stdout)}


def ratios(python: str, package: Path, threads: int) -> dict[str, float]:
    """Inductor against Inductor with the package, timed in a fresh process."""
    words = [python, __file__, "--measure", str(package), "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(package: str, threads: int) -> None:
    """Print the ratios as JSON: medians over pairs of blocks, with the quartiles."""
    import numpy as np
    import torch

    from passagent.evaluator.hardware.devices import find_device
    from passagent.evaluator.hardware.leases import DeviceLease
    from passagent.tasks.extract.model_capture import load_model

    torch.set_num_threads(threads)
    model = load_model(FACTORY)
    options = {"passes": str(package)}
    sides = [torch.compile(model.module), torch.compile(model.module, backend="passagent", options=options)]
    wall, cpu = [], []
    with torch.no_grad():
        outputs = [side(*model.args)[0] for side in sides for _ in range(5)]
        with DeviceLease(find_device("cpu")).exclusive():
            for number in range(BLOCKS):
                took = {}
                for which in (0, 1) if number % 2 else (1, 0):
                    begun, used = time.perf_counter(), time.process_time()
                    for _ in range(CALLS):
                        sides[which](*model.args)
                    took[which] = (time.perf_counter() - begun, time.process_time() - used)
                wall.append((took[0][0], took[1][0]))
                cpu.append((took[0][1], took[1][1]))
    found: dict[str, float] = {"max_diff": float((outputs[0] - outputs[-1]).abs().max())}
    for name, pairs in (("wall", np.array(wall)), ("cpu", np.array(cpu))):
        low, middle, high = np.quantile(pairs[:, 0] / pairs[:, 1], (0.25, 0.5, 0.75))
        found |= {f"{name}_ratio": middle, f"{name}_ratio_q1": low, f"{name}_ratio_q3": high}
        found |= {f"{name}_us_inductor": float(np.median(pairs[:, 0])) / CALLS * 1e6}
        found |= {f"{name}_us_passes": float(np.median(pairs[:, 1])) / CALLS * 1e6}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results")
    parser.add_argument("--package", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.threads)
        return
    python, result = python_of_models(), {"load_before": os.getloadavg()[0], "device": device_name("cpu")}
    with tempfile.TemporaryDirectory() as temporary:
        work, package = given.work or Path(temporary), given.package
        work.mkdir(parents=True, exist_ok=True)
        if package is None:
            found = result["optimize"] = optimized(python, work, given.minutes)
            package = Path(found["package"]) if found["package"] else None
        if package is not None:
            manifest = json.loads((package / "manifest.json").read_text())
            result["versions"] = {key: manifest[key] for key in ("passagent", "torch")}
            result["passes"] = [entry["name"] for entry in manifest["passes"]]
            result["all_cores"] = ratios(python, package, os.cpu_count() or 1)
            result["one_thread"] = ratios(python, package, 1)
    result["load_after"] = os.getloadavg()[0]
    print(json.dumps({key: value for key, value in result.items() if key != "optimize"}, indent=1))
    keep("optimize-bert", "cpu", given.out, result)


if __name__ == "__main__":
    main()
