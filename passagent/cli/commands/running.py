"""`passagent run`: the evaluator's process begins before this one imports what takes long."""

from __future__ import annotations

from typing import Any

from passagent.config import load_config
from passagent.search.startup import Parts, begin
from passagent.tasks.reader import load_task


def run(
    task_path: str,
    preset: str | None,
    settings: dict[str, Any],
    runs_dir: str,
    as_json: bool,
    new: bool,
    parts: Parts | None = None,
    events_file: str | None = None,
) -> None:
    """`passagent run`, see searching.start. Raises PassagentError for a wrong task or settings, too."""
    parts = parts or Parts()
    task = load_task(task_path)
    config = load_config(preset, settings)
    with begin(config, task, parts) as begun:
        from passagent.cli.commands import (
            searching,  # as much again as the evaluator's process takes to begin
        )

        searching.start(task, config, runs_dir, as_json, new, begun, events_file)
