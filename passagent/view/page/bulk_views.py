"""What the pages of many show: a collection, benchmarks, hints, the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.data.collect import collection_figures, trials
from passagent.errors import UsageError
from passagent.experience import exemplars
from passagent.store import Store
from passagent.store.pass_library import KeptPass, PassLibrary
from passagent.view import collect_table
from passagent.view.hint_report import hint_data, uplift_text
from passagent.view.page import charts

BENCHES = "bench"
"""In a runs directory: the results of `passagent bench`."""


def sections(store: Store) -> dict[str, bool]:
    """Which of these pages have something to show."""
    row = store.row(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE trial IS NOT NULL) AS collect, "
        "EXISTS (SELECT 1 FROM episodes WHERE hints IS NOT NULL) AS hints"
    )
    assert row is not None
    return {name: bool(value) for name, value in row.items()}


def collect(store: Store) -> dict[str, Any]:
    """PassNet's figures about the trials in the database: a funnel and its Table 4."""
    found = collection_figures.summarise(trials.outcomes(store))
    if not found:
        raise UsageError(f"{store.runs_dir}: holds no trials of passagent collect")
    return {
        "models": [one.model for one in found],
        "rows": collect_table.rows(found),
        "data": collect_table.data(found),
        "kept_above": collection_figures.KEPT_ABOVE,
    }


def hints(store: Store) -> dict[str, Any]:
    """The hints that models wrote and the curated ones, with the uplift of showing learned hints."""
    return hint_data(store) | {"text": uplift_text}


def has_library(path: Path | None) -> bool:
    """Whether there is a library to look at."""
    return path is not None and path.is_file()


def library(path: Path | None) -> dict[str, Any]:
    """The passes that are kept for later runs, the fastest first, and those that come with passagent."""
    kept: list[KeptPass] = []
    if has_library(path):
        with PassLibrary.open(path, to_look=True) as found:
            kept = found.all()
    return {"path": path, "kept": kept, "shipped": sorted(exemplars.shipped(), key=lambda one: one.task)}


def kept_pass(path: Path | None, word: str) -> dict[str, Any]:
    """A pass of the library, by the beginning of its region's hash."""
    if not has_library(path):
        raise UsageError("there is no library here")
    with PassLibrary.open(path, to_look=True) as found:
        return {"kept": found.named(word)}


def benches(runs_dir: Path) -> list[str]:
    """The names of the benchmarks beside the runs."""
    from passagent.data.bench.results import FILE

    return sorted(path.parent.name for path in (runs_dir / BENCHES).glob(f"*/{FILE}"))


def all_benches(store: Store) -> dict[str, Any]:
    """The benchmarks."""
    return {"names": benches(store.runs_dir)}


def bench(store: Store, name: str) -> dict[str, Any]:
    """A benchmark: PassNet's Table 1, ES(t), S(t), and violins of log2 of the speedups. Imports torch."""
    if name not in benches(store.runs_dir):
        raise UsageError(f"{name:.80}: no such benchmark in {store.runs_dir / BENCHES}")
    from passagent.data.bench.results import look
    from passagent.data.bench.summary import METRICS
    from passagent.data.bench.sweep import summaries_of
    from passagent.view import bench_table
    from passagent.view.curves import log2_by_dtype

    rows = look(store.runs_dir / BENCHES / name)
    compilers = list(dict.fromkeys(row.compiler for row in rows))
    protocol = rows[0].identity if rows else {}
    found = summaries_of(compilers, rows, protocol.get("b", 0.1), protocol.get("p", 0.0))
    groups = []
    for one in found:
        by_dtype = log2_by_dtype(one.compiler, rows)
        groups += [(f"{one.compiler} {dtype}", values) for dtype, values in sorted(by_dtype.items())]
    return {
        "name": name,
        "summaries": found,
        "metrics": METRICS,
        "headers": bench_table.HEADERS,
        "cell": bench_table.cell,
        "identity": protocol,
        "es": charts.tolerance(found, "es", "ES(t)") if found else None,
        "s": charts.tolerance(found, "s", "S(t)") if found else None,
        "violins": charts.violins(groups),
        "failed": [row for row in rows if row.error],
        "rows": rows,
    }
