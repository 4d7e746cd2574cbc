"""`reference: inductor`: a subject is timed against torch.compile's default as well; AS stays eager's."""

from __future__ import annotations

import pytest
from tiny import candidate, write_subgraph, write_task

from passagent.config import EvaluatorConfig
from passagent.errors import TaskError
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.judging.eager_worker import EagerWorker, EagerWorkers
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.runner import worker_messages as messages
from passagent.evaluator.runner.process import WorkerAnswer
from passagent.evaluator.score import GraphScore, as_score
from passagent.tasks.reader import load_task
from passagent.view.evaluation import evaluation_text

CONFIG = EvaluatorConfig(reference="inductor", budget_s=1e-6, timeout_s=600, memory_gb=6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee(forks):
    """A referee in which eager stands for Inductor, whose compiling takes long."""
    with Referee(CONFIG, forks) as one:
        one.workers.compiled = EagerWorkers(one.workers._spare, CONFIG, "eager")
        yield one


def test_each_subgraph_is_timed_against_both(referee, task):
    result = referee.evaluate(task, candidate())
    assert (result.status, result.reference, result.protocol["reference"]) == ("ok", "inductor", "inductor")
    for graph in result.graphs:
        assert graph.vs_reference.low <= graph.vs_reference.e2e <= graph.vs_reference.high
        assert graph.vs_reference != graph.speedup
        assert graph.pairs == [6, 6]  # eager's own
    assert min(g.vs_reference.e2e for g in result.graphs) <= result.gmean_vs_reference
    over_eager = [GraphScore(graph.speedup.e2e, graph.passes_from_t) for graph in result.graphs]
    assert result.as_score == pytest.approx(as_score(over_eager))  # as without the other reference
    assert "vs inductor" in evaluation_text(result)
    assert "speedup over inductor (geometric mean): " in evaluation_text(result)


def test_wrong_values_have_no_speedup_over_anything(referee, task):
    result = referee.evaluate(task, candidate("    return torch.empty_like(a)"))
    assert {graph.vs_reference for graph in result.graphs} == {result.gmean_vs_reference} == {None}
    assert "vs inductor" not in evaluation_text(result)


def test_a_candidate_under_the_score_to_beat_is_not_timed_beside_inductor(referee, task):
    result = referee.evaluate(task, candidate(), bar=1000.0)
    assert (result.status, {len(graph.pairs) for graph in result.graphs}) == ("ok", {1})
    limit = f"its AS, at most {result.as_high:.3f}, is under 1000.000"
    assert result.stopped_early == f"not timed beside inductor: {limit}"
    assert {graph.vs_reference for graph in result.graphs} == {None}


def test_by_default_it_is_eager(task):
    assert EvaluatorConfig().reference == "eager"
    assert environment_key(CONFIG) != environment_key(CONFIG.model_copy(update={"reference": "eager"}))


class Failing:
    """A worker that loads, and fails on every subgraph."""

    killed = False

    def ask(self, message, timeout_s, fds=()):
        error = messages.Error(kind="runtime_error", message="InductorError: no such kernel")
        return WorkerAnswer(messages.Reply() if message.op == "load" else messages.Failure(error=error), None)

    def kill(self):
        self.killed = True


def test_a_compiler_that_fails_is_told_in_a_line():
    worker = Failing()
    twin = EagerWorker(worker, CONFIG, "inductor")
    with pytest.raises(TaskError, match=r"^inductor fails: InductorError: no such kernel$"):
        twin.ask(messages.Release(ids=[]), 1.0)
    assert worker.killed


@pytest.mark.long
def test_inductor_itself(tmp_path):
    task = load_task(write_subgraph(tmp_path / "graph", [4, 64]))
    with Referee(CONFIG.model_copy(update={"dispatch": "graph"})) as referee:
        result = referee.evaluate(task, candidate())
    assert (result.status, result.dispatch, result.reference) == ("ok", "graph", "inductor")
    assert result.gmean_vs_reference > 0


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("dispatch", ["direct", "graph"])
def test_eager_against_inductor_on_a_gpu(dispatch, task):
    with Referee(CONFIG.model_copy(update={"dispatch": dispatch, "device": "cuda"})) as referee:
        result = referee.evaluate(task, "eager")
    assert (result.status, result.dispatch, result.reference) == ("ok", dispatch, "inductor")
    assert all(graph.vs_reference.e2e > 0 for graph in result.graphs)
