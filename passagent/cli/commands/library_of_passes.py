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
from passagent.view.text import print_answer, table

if TYPE_CHECKING:
    from passagent.view.warm_evaluator import Evaluator

_SHOWN = 12
"""Digits of a hash that are shown."""


def list_passes(path: str | None, as_json: bool) -> None:
    """Print the passes of the library at `path`. Raises UsageError where there is none."""
    with PassLibrary.open(path, create=False) as library:
        passes = library.passes()
    rows = [
        [
            _short(record),
            record.operators,
            record.device,
            record.torch,
            f"{record.speedup:.2f}x of {record.reference}",
            record.status
            if record.verified_at is None
            else f"{record.status}, verified {record.verified_at[:10]}",
        ]
        for record in passes
    ]
    data = {"library": str(library.path), "passes": [record.data() for record in passes]}
    header = ["region", "operators", "device", "torch", ">speedup", "status"]
    print_answer(as_json, data, lambda: table(header, rows))


def show(word: str, path: str | None, as_json: bool) -> None:
    """Print all that is known of a pass. Raises UsageError."""
    with PassLibrary.open(path, create=False) as library:
        record = library.named(word)
    data = record.data()
    lines = [f"{f'{key}:':<13}{value}" for key, value in data.items() if key != "files" and value is not None]
    lines += [f"\n--- {name}\n{text.rstrip()}" for name, text in record.sources.items()]
    print_answer(as_json, data, lambda: "\n".join(lines))


def verify(words: Sequence[str], path: str | None, device: str, as_json: bool) -> None:
    """Evaluate passes again on this device, and note what came of it.

    Raises UsageError, PassagentError where one does not hold any more.
    """
    from passagent.evaluator.hardware.devices import find_devices
    from passagent.view.warm_evaluator import Evaluator

    name, torch = find_devices(device)[0].model, version("torch")
    results: list[dict[str, str]] = []
    with PassLibrary.open(path, create=False) as library:
        passes = [library.named(word) for word in words] or library.passes()
        for dispatch, reference in sorted({(record.dispatch, record.reference) for record in passes}):
            settings = {"evaluator.dispatch": dispatch, "evaluator.reference": reference}
            with Evaluator(device=device, settings=settings) as evaluator:
                for record in passes:
                    if (record.dispatch, record.reference) != (dispatch, reference):
                        continue
                    if (record.device, record.torch.partition("+")[0]) != (name, torch.partition("+")[0]):
                        status, why = "elsewhere", f"of {record.device} with torch {record.torch}"
                    else:
                        status, why = _evaluated(record, evaluator)
                        library.note(record, status)
                    result = {"instance": record.instance, "operators": record.operators}
                    results.append(result | {"status": status, "why": why})
                    if not as_json:
                        print(f"{_short(record)} {record.operators}: {status}{f', {why}' if why else ''}")
    if as_json:
        print(json.dumps({"library": str(library.path), "passes": results}))
    failed = [result for result in results if result["status"] not in ("ok", "elsewhere")]
    if failed:
        raise PassagentError(f"{failed[0]['operators']}: does not hold any more: {failed[0]['why']}")


def _evaluated(record: KeptPass, evaluator: Evaluator) -> tuple[str, str]:
    """Return the status of a pass that is evaluated again, and why it is wrong or how fast it is."""
    with tempfile.TemporaryDirectory() as place:
        result = evaluator.evaluate(record.write_task(Path(place)), record.sources, fresh=True).evaluation
    if result.status != "ok":
        error = next((graph.error for graph in result.graphs if graph.error), result.error)
        return result.status, error or result.status
    speedup = result.gmean_vs_reference
    return "ok", "" if speedup is None else f"{speedup:.2f}x of {record.reference} now"


def _short(record: KeptPass) -> str:
    return record.instance.rpartition(":")[2][:_SHOWN]
