"""`passagent package`, `passagent explain` and `passagent measure`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from passagent.errors import PassagentError


def package(sources: Sequence[str], tasks: Sequence[str], out: str, runs_dir: str, as_json: bool) -> None:
    """Write the package `out` of runs' best passes and of directories. Raises PassagentError."""
    from passagent.deploy.package_writing import pack, read_sources

    packed = pack(list(read_sources(sources, tasks, runs_dir)), Path(out))
    if as_json:
        print(json.dumps({"path": out, "operators": packed.operators, "left_out": packed.left_out}))
        return
    for operator, name in packed.operators.items():
        print(f"{name}: torch.ops.passagent.{operator}")
    for name, why in packed.left_out:
        print(f"left out: {name}: {why}")
    print(f'use it: torch.compile(model, backend="passagent", options={{"passes": "{out}"}})')


def measure(
    spec: str, inputs: str | None, passes: str, modes: Sequence[str], out: str | None, as_json: bool
) -> None:
    """Time a model with and without passes; `out`: write the package without those that do not pay.

    Raises PassagentError, also where outputs are not eager's.
    """
    from passagent.deploy.loading import load_packages
    from passagent.deploy.model_timing import measure_model
    from passagent.deploy.package_writing import drop
    from passagent.tasks.extract.factories import load_model

    packages = load_packages(passes)
    found = measure_model(load_model(spec, inputs), packages, modes or None)
    if out is not None:
        drop(packages[0], found.losers, Path(out))
    print(json.dumps(found.data()) if as_json else found)
    if found.unequal:
        raise PassagentError(f"outputs are not eager's: {found.unequal[0]}")


def explain(passes: str, spec: str, inputs: str | None, dynamic: bool, as_json: bool) -> None:
    """Print which pass fits where in a model, and which does not and why. Raises PassagentError."""
    from passagent.deploy.loading import load_packages
    from passagent.deploy.rewriting import explain_model
    from passagent.tasks.extract.factories import load_model

    found = explain_model(load_model(spec, inputs), load_packages(passes), dynamic)
    print(json.dumps(asdict(found)) if as_json else found)
