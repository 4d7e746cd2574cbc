"""Graphs are captured once and kept by content."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace

import pytest
import tiny

from passagent.config import EvaluatorConfig
from passagent.evaluator import captures
from passagent.evaluator.judging.referee import Referee
from passagent.tasks import load_task

CONFIG = EvaluatorConfig(budget_s=1e-6, memory_gb=6)


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    return load_task(tiny.write_subgraph(tmp_path / "graph", [4, 64]))


def judged(task):
    with Referee(CONFIG) as referee:
        return referee.evaluate(task, tiny.candidate())


@pytest.fixture
def no_capture(tmp_path, monkeypatch):
    """From now on a process of the evaluator that would capture a graph fails."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text(
        textwrap.dedent("""
        import sys

        class Refusing:
            def find_spec(self, name, path=None, target=None):
                if name == "passagent.tasks.capture":
                    raise ImportError("not here")

        sys.meta_path.insert(0, Refusing())
        """)
    )

    def begin():
        monkeypatch.syspath_prepend(tmp_path / "path")

    return begin


@pytest.mark.long
def test_a_second_evaluator_captures_nothing(task, no_capture, tmp_path):
    first = judged(task)
    [file] = (tmp_path / "cache/graphs").iterdir()
    assert json.loads(file.read_text())["order"] == [0, 1]
    no_capture()
    second = judged(task)
    assert (first.status, second.status) == ("ok", "ok"), second.error
    assert second.graphs[0].nodes_before == first.graphs[0].nodes_before == 3


@pytest.mark.long
def test_what_is_new_is_captured_without_dynamo_and_after_the_fork_server_was_lost(task, tmp_path):
    assert judged(task).status == "ok"
    more, last = (load_task(tiny.write_subgraph(tmp_path / f"g{n}", [2, n])) for n in (96, 128))
    with Referee(CONFIG) as referee:
        results = [referee.evaluate(one, tiny.candidate()) for one in (task, more)]
        referee.server.process.kill()
        referee.server.process.wait()
        results.append(referee.evaluate(last, tiny.candidate()))
    assert [result.status for result in results] == ["ok", "ok", "ok"]
    assert len(list((tmp_path / "cache/graphs").iterdir())) == 3


def test_what_is_kept_is_of_this_text_these_inputs_and_this_device(task):
    [subgraph] = task.subgraphs
    kept = captures.KeptGraph([{"op": "output"}], [0])
    captures.keep(subgraph, "cpu", kept)
    assert captures.without_dynamo(subgraph, "cpu") == kept
    assert captures.without_dynamo(replace(subgraph, path=subgraph.path / "copy", name="copy"), "cpu") == kept
    assert captures.without_dynamo(subgraph, "cuda:0") is None
    assert captures.without_dynamo(replace(subgraph, source=subgraph.source + "\n"), "cpu") is None
    other = replace(subgraph.inputs[0], dtype="float16")
    assert captures.without_dynamo(replace(subgraph, inputs=(other, *subgraph.inputs[1:])), "cpu") is None


def test_graph_of_captures_once(task, monkeypatch):
    [subgraph] = task.subgraphs
    first = captures.graph_of(subgraph, "cpu")
    assert [node["op"] for node in first.nodes].count("call_function") == 3
    monkeypatch.setattr("passagent.tasks.capture.capture", None)
    assert captures.graph_of(subgraph, "cpu") == first


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": []}'])
def test_a_broken_file_is_captured_anew(task, tmp_path, text):
    captures.keep(task.subgraphs[0], "cpu", captures.KeptGraph([], []))
    [file] = (tmp_path / "cache/graphs").iterdir()
    file.write_text(text)
    assert captures.without_dynamo(task.subgraphs[0], "cpu") is None


def test_where_nothing_can_be_kept_each_evaluator_captures(task, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "file"))
    captures.keep(task.subgraphs[0], "cpu", captures.KeptGraph([], []))
    assert captures.without_dynamo(task.subgraphs[0], "cpu") is None
