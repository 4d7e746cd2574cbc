"""What the mode `cuda-graph` saves beside Inductor's `reduce-overhead`, with the shipped passes and without.

    python benchmarks/cuda_graph_mode.py roberta:1 clip_vision:1 --out FILE.json

Models are those of shipped_passes.py, as MODEL:BATCH. Each is measured as `passagent measure` does it, in
three modes, all sides in turn in one process. FILE gets the measurements.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import shipped_passes

from passagent.packages.loading import load_packages
from passagent.packages.model_timing import measure_model
from passagent.tasks.extract.model_capture import Model

MODES = ["default", "cuda-graph", "reduce-overhead"]


def main() -> None:
    """Measure the models, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL:BATCH")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = {}
    for key in given.models:
        name, _, batch = key.partition(":")
        model, inputs = shipped_passes.model_of(name, int(batch), "cuda:0")
        measured = measure_model(Model(name, model, inputs), load_packages("passagent.passes"), MODES)
        print(f"{key}\n{measured}\n", flush=True)
        rows[key] = measured.data()
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
