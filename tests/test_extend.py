"""Parts of one's own: each example of examples/extend in a search, and paths that do not load."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tiny
import tiny_search

import passagent as pa
from passagent import extend
from passagent.cli import running
from passagent.config import EvaluatorConfig, load_config
from passagent.errors import UsageError
from passagent.evaluator.target import target_of
from passagent.experience import knowledge
from passagent.models import open_model
from passagent.models.scripted import ScriptedModel, calling
from passagent.search.setup import Parts
from passagent.store import Store, episodes, nodes, runs
from passagent.tasks import load_task

ROOT = Path(__file__).parents[1]
HERE = "examples.extend"


@pytest.fixture
def searched(tmp_path, monkeypatch, capsys):
    """`searched(settings, model=None)`: a tiny run, from the root of the checkout, and its store."""
    monkeypatch.chdir(ROOT)
    task = tiny_search.write_task(tmp_path / "task")
    opened = []

    def search(settings, model=None, iters=6):
        parts = Parts(model, tiny_search.FastEvaluator(), tiny_search.diagnose)
        every = tiny_search.settings(iters, 2, 1) | settings
        running.run(
            str(task), {"settings": every, "runs_dir": str(tmp_path / "runs"), "new": True}, True, parts
        )
        told = json.loads(capsys.readouterr().out)
        opened.append(Store.open(tmp_path / "runs"))
        return told, opened[-1], runs.find_run(opened[-1], told["run"])

    yield search
    for store in opened:
        store.close()


def test_a_model(searched):
    told, store, run = searched({"model.name": f"{HERE}.model:Fixed", "search.expert_seeds": 1}, iters=2)
    assert told["model"] == f"{HERE}.model:Fixed" and told["episodes"] == 2
    assert {node.number for node in nodes.of_run(store, run.id)} >= {1, 2}


def test_a_policy(searched):
    settings = {"search.policy": f"{HERE}.policy:Newest", "search.islands": 1, "search.elites": 100}
    _, store, run = searched(settings, tiny_search.PacedModel(), iters=8)
    made = nodes.of_run(store, run.id)
    known = {node.id: node for node in made}
    begun = [node for node in made if node.number > 1 and node.place == 1]
    assert begun
    for node in begun:
        correct = [n.number for n in made if n.number < node.number and n.status == "ok" and not n.repeat_of]
        assert known[node.parent_id].number == max(correct)


def test_a_stopping_rule(searched):
    told, _, run = searched(
        {"search.stop": [f"{HERE}.stop:FirstCorrect"]}, tiny_search.PacedModel(), iters=50
    )
    assert run.stop_reason == "a pass is correct" and told["episodes"] < 50


def test_a_tool(searched):
    def reply(messages, tools):
        assert [tool.name for tool in tools] == ["file_editor", "count_lines"]
        if messages[-1]["role"] != "tool":
            create = {"command": "create", "path": "A.py", "file_text": "x = 1\ny = 2\n"}
            return calling(("file_editor", create), ("count_lines", {}))
        return "Done."

    tools = ["file_editor", f"{HERE}.tool:CountLines"]
    _, store, run = searched({"agent.tools": tools, "search.islands": 1}, ScriptedModel(reply), iters=1)
    [episode] = store.rows("SELECT id FROM episodes WHERE run_id = :run", {"run": run.id})
    talk = episodes.conversation(store, episode["id"])
    assert [tool["name"] for tool in talk[0]["tools"]] == ["file_editor", "count_lines"]
    assert any(m["role"] == "tool" and m["content"].startswith("A.py: 2 lines") for m in talk)


def test_a_target(searched):
    own = {"evaluator.target": f"{HERE}.target:OneThread", "search.islands": 1}
    _, store, run = searched(own, tiny_search.PacedModel(), iters=1)
    [episode] = store.rows("SELECT id FROM episodes WHERE run_id = :run", {"run": run.id})
    rules, task = (message["content"] for message in episodes.conversation(store, episode["id"])[:2])
    assert "cpp_kernel(source, name)" in rules and "The host has one thread" in rules
    assert "FusedAddLayerNorm" in rules and "omp simd" in rules and "Target: cpu" in task
    assert "omp parallel" not in rules + task
    [sample] = [name for name in knowledge.documents() if name.endswith("cpu_quick_gelu/quick_gelu.py")]
    assert "omp parallel" in knowledge.read(sample, target_of(EvaluatorConfig()))
    with pytest.raises(UsageError, match="no document"):
        knowledge.read(sample, target_of(load_config(None, own).evaluator))


@pytest.mark.usefixtures("referee_inside")
def test_a_target_refuses_kernels(tmp_path, monkeypatch):
    """In the evaluator's own process; without it, and without what it refuses, the same pass is right."""
    monkeypatch.chdir(ROOT)
    task = load_task(tiny.write_subgraph(tmp_path / "small", [4, 64]))
    right = tiny.candidate()
    threads = tiny.candidate(setup=tiny.KERNEL.replace("  for (", "#pragma omp parallel for\n  for ("))
    quick = {"evaluator.budget_s": 1e-6}
    own = quick | {"evaluator.target": f"{HERE}.target:OneThread"}
    with pa.Evaluator(settings=own) as evaluator:
        assert evaluator.evaluate(task, right).status == "ok"
        found = evaluator.evaluate(task, threads).evaluation
    assert found.status == "refused"
    assert [one.message for one in found.violations] == [
        "launches silu_mul_add: it starts threads; use `omp simd` alone"
    ]
    with pa.Evaluator(settings=quick) as evaluator:
        assert evaluator.evaluate(task, threads).status == "ok"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluator.target": f"{HERE}.target:Two"}, "examples.extend.target has no 'Two'"),
        ({"evaluator.target": f"{HERE}.stop:FirstCorrect"}, "has no 'prompt'; it needs prompt, admits, "),
        ({"evaluator.target": "passagent.evaluator.target:Cuda"}, "is for cuda, and the device is cpu"),
    ],
)
def test_a_target_that_cannot_be_one_is_told_before_anything_begins(settings, said, monkeypatch, searched):
    with pytest.raises(UsageError, match=re.escape(said)):
        searched(settings, tiny_search.PacedModel())
    with pytest.raises(UsageError, match=re.escape(said)):
        pa.Evaluator(settings=settings)


def test_a_package_names_its_model(monkeypatch):
    point = EntryPoint("own_model", f"{HERE}.model:Fixed", extend.MODELS)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group, name: [point] if (group, name) == (extend.MODELS, "own_model") else [],
    )
    assert open_model(load_config(None, {"model.name": "own_model"}).model).name == "own_model"
    with pytest.raises(UsageError, match="unknown model"):
        open_model(load_config(None, {"model.name": "other_model"}).model)


BROKEN = """
import {imported}
value = 3
class Bare: pass
class Needy:
    spec = run = None
    def __init__(self): raise RuntimeError("no\\nway")
class Rule:
    def __init__(self, config): pass
class Silent:
    scope = "islands"
    def __init__(self, config): pass
class Failing(Silent):
    select = None
    def __init__(self, config): raise RuntimeError("no\\nway")
"""


@pytest.mark.parametrize(
    ("key", "path", "said"),
    [
        (
            "search.policy",
            "nothing_here.mod:P",
            "nothing_here.mod:P: there is no module 'nothing_here'",
        ),
        ("search.policy", "own_parts.sub:P", "there is no module 'own_parts.sub'"),
        ("search.policy", "own_broken:P", "own_broken does not import: No module named 'no_such_library'"),
        ("search.policy", "own_wrong:P", "own_wrong does not import: SyntaxError"),
        ("search.policy", "own_parts:Sillent", "own_parts has no 'Sillent'; did you mean 'Silent'"),
        ("search.policy", "own_parts:value", "is not a class"),
        ("search.policy", "own_parts:Silent", "has no 'select'; it needs select, scope"),
        ("search.policy", "own_parts.Silent", "unknown; known: "),
        ("search.stop", "own_parts:Rule", "has no '__call__'; it needs __call__"),
        ("search.policy", "own_parts:Failing", "cannot be made: RuntimeError: no way"),
        ("agent.tools", "own_parts:Bare", "has no 'run'; it needs run, spec"),
        (
            "model.name",
            "own_parts:Bare",
            "own_parts:Bare: has no 'complete'; it needs complete, ",
        ),
    ],
)
def test_a_path_that_does_not_load_says_which_part_failed(key, path, said, searched, tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(BROKEN.format(imported="os"))
    (tmp_path / "own_broken.py").write_text(BROKEN.format(imported="no_such_library"))
    (tmp_path / "own_wrong.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    value = [path] if key in ("search.stop", "agent.tools") else path
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        searched({key: value}, None if key == "model.name" else tiny_search.PacedModel())
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "runs").exists()
