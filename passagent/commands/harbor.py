"""`passagent tasks export --harbor`."""

from __future__ import annotations

import json
from pathlib import Path

from passagent.config import load_config
from passagent.rl import harbor
from passagent.settings import parse_set
from passagent.tasks.tasklist import find_tasks


def export_harbor(
    words: list[str], directory: str, device: str, wheel: str | None, settings: list[str], as_json: bool
) -> None:
    """Write a Harbor task for each task and print where. Raises PassagentError."""
    config = load_config(None, parse_set(settings) | {"evaluator.device": device})
    shared = harbor.Export(config, settings, Path(wheel) if wheel else None)
    written = harbor.export(find_tasks(words), Path(directory), shared)
    if as_json:
        print(json.dumps({"format": "harbor", "tasks": [str(path) for path in written]}))
        return
    for path in written:
        print(path)
