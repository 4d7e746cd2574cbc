"""What runs left on the disk that nothing needs any more."""

from __future__ import annotations

from pathlib import Path

from passagent.store.database import Store
from passagent.store.runs import Run


def stale_workspaces(store: Store, run: Run, is_live: bool) -> list[Path]:
    """Directories of episodes that no process works on; a resumed episode builds its own anew."""
    root = store.runs_dir / run.id / "workspaces"
    if not root.is_dir():
        return []
    rows = store.rows(
        "SELECT number FROM episodes WHERE run_id = :run AND state = 'running' AND owner IS NOT NULL",
        {"run": run.id},
    )
    in_use = {str(row["number"]) for row in rows} if is_live else set()
    return sorted(path for path in root.iterdir() if path.name not in in_use)
