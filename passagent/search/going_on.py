"""The words of the commands that go on with a run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from passagent.store import Store, runs


def runs_dir_flag(store: Store) -> str:
    """` --runs-dir DIR` where a command needs it to find this store."""
    default = Path(os.environ.get("PASSAGENT_RUNS_DIR", "runs")).absolute()
    if store.runs_dir == default:
        return ""
    here = Path.cwd()
    shown = store.runs_dir.relative_to(here) if store.runs_dir.is_relative_to(here) else store.runs_dir
    return f" --runs-dir {shlex.quote(str(shown))}"


def resume_command(store: Store, run_id: str) -> str:
    """`passagent resume RUN`, with the flag above; of a run that clients fill, the server's command."""
    is_served = runs.get_run(store, run_id).is_served
    return f"passagent {'mcp' if is_served else f'resume {run_id}'}{runs_dir_flag(store)}"
