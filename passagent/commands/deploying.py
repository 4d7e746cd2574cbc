"""`passagent package` and `passagent explain`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path


def package(sources: Sequence[str], tasks: Sequence[str], out: str, runs_dir: str, as_json: bool) -> None:
    """Write the package `out` of runs' best passes and of directories. Raises PassagentError."""
    from passagent.deployment.package_writing import pack
    from passagent.deployment.sources import read_sources

    packed = pack(list(read_sources(sources, tasks, runs_dir)), Path(out))
    if as_json:
        print(json.dumps({"path": out, "operators": packed.operators, "left_out": packed.left_out}))
        return
    for operator, name in packed.operators.items():
        print(f"{name}: torch.ops.passagent.{operator}")
    for name, why in packed.left_out:
        print(f"left out: {name}: {why}")
    print(f'use it: torch.compile(model, backend="passagent", options={{"passes": "{out}"}})')


def explain(passes: str, spec: str, inputs: str | None, dynamic: bool, as_json: bool) -> None:
    """Print which pass fits where in a model, and which does not and why. Raises PassagentError."""
    from passagent.deployment.explanation import explain_model
    from passagent.deployment.loading import load_packages
    from passagent.extraction.factories import load_model

    found = explain_model(load_model(spec, inputs), load_packages(passes), dynamic)
    print(json.dumps(asdict(found)) if as_json else found)
