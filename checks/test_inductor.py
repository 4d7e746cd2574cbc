"""torch.compile's default measured beside eager, which takes long to compile."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

import tiny  # noqa: E402
from command import call  # noqa: E402, F401
from test_bench import QUICK  # noqa: E402


def test_compilers_side_by_side(
    call,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    subgraph = tiny.write_subgraph(tmp_path / "graph", [4, 64])
    patient = ["--set", "evaluator.timeout_s=1000"]  # compiling takes long
    code, out, _ = call("bench", subgraph, *QUICK, *patient, "--json")
    assert code == 0
    data = json.loads(out)
    assert [(line["compiler"], line["dispatch"]) for line in data["compilers"]] == [
        ("eager", "direct"),
        ("inductor", "dynamo"),
    ]
    for line in data["compilers"]:
        assert (line["tasks"], line["subgraphs"]) == (1, 1)
        assert line["subgraph_cr"] == {"value": 1.0, "low": None, "high": None}
    rows = (tmp_path / data["results_files"][0]).read_text().splitlines()
    eager, inductor = (json.loads(row)["evaluation"] for row in rows)
    assert (eager["status"], eager["candidate"], eager["dispatch"]) == ("ok", "eager", "direct")
    assert (inductor["status"], inductor["candidate"], inductor["dispatch"]) == ("ok", "inductor", "dynamo")
    assert all(result["graphs"][0]["speedup"]["e2e"] > 0 for result in (eager, inductor))
    assert data["results_files"][0] == "runs/bench/graph-cpu-direct/results.jsonl"
    assert any((tmp_path / "cache/inductor/fxgraph").iterdir())  # compiled once for as long as it lasts
