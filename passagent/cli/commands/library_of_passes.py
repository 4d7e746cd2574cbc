"""`passagent library`: what is kept of earlier searches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.errors import PassagentError
from passagent.store.pass_library import KeptPass, PassLibrary
from passagent.view.text import table

if TYPE_CHECKING:
    from passagent.view.warm_evaluator import Evaluator

_SHOWN = 12
"""Digits of a hash that are shown."""


def list_passes(path: str | None, as_json: bool) -> None:
    """Print the passes of the library at `path`. Raises UsageError where there is none."""
    with PassLibrary.open(path, create=False) as library:
        kept = library.all()
    if as_json:
        print(json.dumps({"library": str(library.path), "passes": [one.data() for one in kept]}))
        return
    rows = [
        [
            _short(one),
            one.operators,
            one.device,
            one.torch,
            f"{one.speedup:.2f}x of {one.reference}",
            one.status if one.verified_at is None else f"{one.status}, verified {one.verified_at[:10]}",
        ]
        for one in kept
    ]
    print(table(["region", "operators", "device", "torch", ">speedup", "status"], rows))


def show(word: str, path: str | None, as_json: bool) -> None:
    """Print all that is known of a pass. Raises UsageError."""
    with PassLibrary.open(path, create=False) as library:
        one = library.named(word)
    if as_json:
        print(json.dumps(one.data()))
        return
    for name, value in one.data().items():
        if name != "files" and value is not None:
            print(f"{name + ':':<13}{value}")
    for name, text in one.sources.items():
        print(f"\n--- {name}\n{text.rstrip()}")


def verify(words: Sequence[str], path: str | None, device: str, as_json: bool) -> None:
    """Evaluate passes again on this device, and note what came of it.

    Raises UsageError, PassagentError where one does not hold any more.
    """
    from passagent.evaluator.hardware.devices import find_devices
    from passagent.view.warm_evaluator import Evaluator

    name, torch = find_devices(device)[0].model, version("torch")
    results: list[dict[str, object]] = []
    with PassLibrary.open(path, create=False) as library:
        kept = [library.named(word) for word in words] or library.all()
        for dispatch, reference in sorted({(one.dispatch, one.reference) for one in kept}):
            settings = {"evaluator.dispatch": dispatch, "evaluator.reference": reference}
            with Evaluator(device=device, settings=settings) as evaluator:
                for one in kept:
                    if (one.dispatch, one.reference) != (dispatch, reference):
                        continue
                    told = {"instance": one.instance, "operators": one.operators}
                    if (one.device, one.torch.partition("+")[0]) != (name, torch.partition("+")[0]):
                        status, why = "elsewhere", f"of {one.device} with torch {one.torch}"
                    else:
                        status, why = _evaluated(one, evaluator)
                        library.note(one, status)
                    results.append({**told, "status": status, "why": why})
                    if not as_json:
                        print(f"{_short(one)} {one.operators}: {status}{f', {why}' if why else ''}")
    if as_json:
        print(json.dumps({"library": str(library.path), "passes": results}))
    wrong = [one for one in results if one["status"] not in ("ok", "elsewhere")]
    if wrong:
        raise PassagentError(f"{wrong[0]['operators']}: does not hold any more: {wrong[0]['why']}")


def _evaluated(one: KeptPass, evaluator: Evaluator) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as place:
        result = evaluator.evaluate(one.write_task(Path(place)), one.sources, fresh=True)
    if result.status != "ok":
        found = result.evaluation
        return result.status, next((g.error for g in found.graphs if g.error), found.error) or result.status
    beside = result.evaluation.gmean_vs_reference
    return "ok", "" if beside is None else f"{beside:.2f}x of {one.reference} now"


def _short(one: KeptPass) -> str:
    return one.instance.rpartition(":")[2][:_SHOWN]
