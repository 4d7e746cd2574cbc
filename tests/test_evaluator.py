"""The referee on a small real task: honest work is scored, and every failure gets its own status."""

import dataclasses
import gc
import json
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from test_prompts import context
from tiny import HONEST, KERNEL, MODEL, candidate, write_subgraph, write_task

from passagent.agent.observe import observation, verdict
from passagent.agent.prompt import compose
from passagent.config import EvaluatorConfig
from passagent.errors import TaskError
from passagent.evaluator.fleet.opening import threads_of
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.judging import effort, judging, speed_of_light
from passagent.evaluator.judging.loaded_worker import LoadedWorker
from passagent.evaluator.judging.recorder import NO_TRITON
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.judging.verdict import evaluate_refused
from passagent.evaluator.reference import baseline, keeping
from passagent.evaluator.reference.eager import Output
from passagent.evaluator.result import MANIFEST, Candidate, Measured
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.score import BEYOND_SET, SETS
from passagent.evaluator.timing import clocks
from passagent.experience.diagnosis import diagnose
from passagent.sandbox import tools
from passagent.tasks.reader import load_task

MACHINE = Machine(issue_s=1e-6, bandwidths=((2**20, 1e11), (2**27, 1e10)))
CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee(forks):
    with Referee(CONFIG, forks) as one:
        yield one


@pytest.fixture(scope="module")
def of_one_thread():
    """A second referee, started where a key is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-planted-secret")
        with Referee(CONFIG.model_copy(update={"threads": 1})) as one:
            yield one


@pytest.fixture
def judging_by(referee, monkeypatch):
    """`judging_by(config)`: the referee, which judges by another configuration during this test."""

    def judging_by(config):
        monkeypatch.setattr(referee, "config", config)
        return referee

    return judging_by


def test_an_honest_pass_is_scored(referee, task):
    result = referee.evaluate(task, candidate())
    assert result.status == "ok"
    assert result.violations == []
    assert set(result.es) == {str(t) for t in range(-10, 5)}
    assert 0 < result.as_low <= result.as_score <= result.as_high
    assert set(result.device_state) == {"before", "after"}
    assert (result.timing, result.dispatch) == ("wall", "direct")
    for graph in result.graphs:
        assert (graph.matches, graph.applied) == (1, ["Fused"])
        assert graph.passes_from_t <= -3
        assert len(graph.eager_samples_ms) == len(graph.compiled_samples_ms) == graph.trials
        assert len(graph.pairs) == 2 and min(graph.pairs) >= 6
        assert sum(graph.pairs) == len(graph.blocks) <= graph.trials == sum(graph.blocks) < 200
        assert graph.speedup.low <= graph.speedup.e2e <= graph.speedup.high
        # what is printed side by side agrees, and is what the samples say
        assert graph.speedup.e2e == pytest.approx(graph.eager_ms / graph.compiled_ms, rel=1e-9)
        eager, compiled = graph.eager_samples_ms, graph.compiled_samples_ms  # to four digits
        assert 0.999 * min(eager) <= graph.eager_ms <= 1.001 * max(eager)
        slowest, fastest = min(eager) / max(compiled), max(eager) / min(compiled)
        assert 0.998 * slowest <= graph.speedup.e2e <= 1.002 * fastest
        assert graph.float64_error <= 2 * graph.eager_float64_error
        assert (graph.nodes_before, graph.nodes_after, graph.left) == (3, 1, ["Fused"])


VIEWS = """import torch
class GraphModule(torch.nn.Module):
    def forward(self, in_0, in_1):
        tmp_0 = in_0 * 2
        return (in_0.view(-1), tmp_0, tmp_0.t(), in_1)
"""


def test_what_a_subgraph_must_move_are_inputs_and_outputs_once(referee, task, tmp_path):
    read, written = 2 * 4 * 64, 4 * 64
    moved = [graph.moved_bytes for graph in referee.evaluate(task, "eager").graphs]
    assert (moved[0], moved[2]) == (4 * (read + written), 2 * (read + written))
    write_subgraph(tmp_path / "views", [4, 64], model=VIEWS)
    [graph] = referee.evaluate(load_task(tmp_path / "views"), "eager").graphs
    assert graph.moved_bytes == 4 * (4 * 64 + written)  # in_1 is handed back unread


def test_an_author_is_told_what_eager_returns_computes_and_takes(referee, task, tmp_path):
    write_subgraph(tmp_path / "views", [4, 64], "bfloat16", VIEWS)
    [views] = referee.describe(load_task(tmp_path / "views"), 3600.0)
    assert views.outputs[:3] == (
        Output((256,), "bfloat16", (1,)),
        Output((4, 64), "bfloat16", (64, 1)),
        Output((64, 4), "bfloat16", (1, 64)),
    )
    assert views.operators == ("mul", "view", "t")
    assert views.eager_us > 0
    assert [graph.name for graph in referee.describe(task, 3600.0)] == [one.name for one in task.subgraphs]
    assert referee.describe(task, 0.0) == []


def test_operators_that_a_pass_leaves_are_named(referee, task):
    text = candidate().files["Fused.py"].replace("T(round_to<T>(s * y) + 1.0f)", "T(s * y)")
    files = candidate().files | {"Fused.py": text.replace(" + 1.0", "")}
    result = referee.evaluate(task, Candidate(files), bar=1000.0)
    assert {tuple(graph.left) for graph in result.graphs} == {("Fused", "add")}
    assert "operators 3 -> 2 (left: add)" in observation(result)


def test_a_search_times_a_candidate_by_one_pair_of_workers_and_in_full_by_several(referee, task):
    for bar, pairs in ((0.1, 1), (None, 2)):
        result = referee.evaluate(task, candidate(), bar)
        assert {len(graph.pairs) for graph in result.graphs} == {pairs}
        assert (result.bar, result.stopped_early) == (bar, None)
    on_gpu = CONFIG.model_copy(update={"device": "cuda:0"})
    assert [effort.pairs_of(on_gpu, "direct", bar) for bar in (None, 1.2)] == [4, 1]
    assert [effort.pairs_of(CONFIG, "dynamo", bar) for bar in (None, 1.2)] == [1, 1]


def test_an_honest_candidate_that_is_suspected_of_hiding_time_is_cleared(referee, task, monkeypatch):
    made, hides = [], []

    def watched(pair, in_place):
        def noted(*samples):
            made.append(samples)
            pair(*samples)

        hides.append(clocks_hides_time(noted, in_place))
        return hides[-1]

    clocks_hides_time = clocks.hides_time
    monkeypatch.setattr(clocks, "suspicious", lambda *_: True)
    monkeypatch.setattr(clocks, "hides_time", watched)
    result = referee.evaluate(task, candidate(), bar=0.01)  # by one pair of workers
    assert (result.status, result.violations) == ("ok", [])
    # A busy machine may name one: what it is measured in then counts for nothing, and new workers clear it.
    assert hides.count(None) == 3  # subgraphs
    for samples in made[-1]:  # the clock that was told of first saw all of it
        assert min(samples.hidden) > 0


def faster(answer):
    """The answer of a worker that says that its calls take a twentieth."""
    if not hasattr(answer.said, "samples"):
        return answer
    fewer = [n // 20 for n in answer.said.samples]
    return dataclasses.replace(answer, said=answer.said.model_copy(update={"samples": fewer}))


def quiet(answer):
    """The answer as it is where nothing else runs: the referee's clock sees the calls, and little beside."""
    if not hasattr(answer.said, "samples") or answer.clock_ns is None:
        return answer
    return dataclasses.replace(answer, clock_ns=sum(answer.said.samples) + 20_000, waited_ns=0)


def test_a_candidate_whose_clock_is_slow_is_refused(of_one_thread, tmp_path, monkeypatch):
    write_subgraph(tmp_path / "task" / "graphs" / "g", [128, 1024])
    (tmp_path / "task" / "graph_list.txt").write_text("graphs/g\n")
    ask, watched = Worker.ask, LoadedWorker.ask
    monkeypatch.setattr(Worker, "ask", lambda *words, **more: quiet(ask(*words, **more)))
    monkeypatch.setattr(LoadedWorker, "ask", lambda *words, **more: faster(watched(*words, **more)))
    found = of_one_thread.evaluate(load_task(tmp_path / "task"), candidate())
    assert (found.status, [one.rule for one in found.violations]) == ("refused", ["clock"])
    [violation] = found.violations
    measured = violation.measured
    assert measured.claimed < measured.bound < measured.seen
    assert measured.seen > 10 * measured.claimed  # claimed is a twentieth
    for figure in (measured.claimed, measured.seen, measured.bound):
        assert f"{figure:.4g} us" in violation.message
    assert violation.place == "Fused.py"  # no line is to blame


def test_the_threads_that_the_task_states_are_those_of_a_kernel(tmp_path):
    """By the values of a kernel that hands over how many it may have."""
    config = CONFIG.model_copy(update={"threads": 2})
    task = load_task(write_subgraph(tmp_path / "g", [4, 64]))
    shown = context(task.path, threads=threads_of(config))
    stated = re.search(r"eager's and yours: (\d+) ", compose(shown)[1]["content"])
    with Referee(config) as referee:
        setup = KERNEL.replace("out[i] = T(", "out[i] = T(1000 * omp_get_max_threads()); (void)(")
        result = referee.evaluate(task, broken(HONEST, setup))
    assert {graph.worst.got for graph in result.graphs} == {2000.0}
    assert stated is not None and stated[1] == "2"


def test_a_candidate_of_more_threads_than_eager_may_have_is_refused(of_one_thread, tmp_path, monkeypatch):
    write_subgraph(tmp_path / "task" / "graphs" / "g", [128, 1024])
    (tmp_path / "task" / "graph_list.txt").write_text("graphs/g\n")
    task = load_task(tmp_path / "task")
    assert of_one_thread.evaluate(task, candidate()).status == "ok"
    monkeypatch.setattr(judging, "worker_threads", lambda _: 0.2)  # as if eager had a fifth of a processor
    found = of_one_thread.evaluate(task, candidate())
    assert (found.status, [one.rule for one in found.violations]) == ("refused", ["threads"])
    [violation] = found.violations
    assert 0.3 < violation.measured.seen < 1.1 and "processors busy" in violation.message


def test_a_refusal_by_the_clock_is_measured_again_by_new_workers_before_it_stands(
    of_one_thread, tmp_path, monkeypatch
):
    """A disturbance of one process is no refusal, and what that process measured counts for nothing."""
    write_subgraph(tmp_path / "task" / "graphs" / "g", [128, 1024])
    (tmp_path / "task" / "graph_list.txt").write_text("graphs/g\n")
    asked, honest = [], Counter()
    ask, watched = Worker.ask, LoadedWorker.ask

    def first_is_disturbed(side, message, timeout_s, fds=()):
        answer = watched(side, message, timeout_s, fds)
        asked.append(side.worker.pid)
        if side.worker.pid == asked[0]:
            return faster(answer)
        honest.update(getattr(answer.said, "samples", []))
        return answer

    monkeypatch.setattr(Worker, "ask", lambda *words, **more: quiet(ask(*words, **more)))
    monkeypatch.setattr(LoadedWorker, "ask", first_is_disturbed)
    monkeypatch.setattr(clocks, "charge_copying", lambda *_: None)  # what is shown is what was answered
    result = of_one_thread.evaluate(load_task(tmp_path / "task"), candidate())
    assert (result.status, result.violations) == ("ok", [])
    [graph] = result.graphs
    assert len(set(asked)) == 3  # two pairs of workers, of which one was replaced
    shown = Counter(float(f"{ns / 1e6:.4g}") for ns in honest.elements())
    assert Counter(graph.compiled_samples_ms) <= shown  # the forged times are gone


@pytest.mark.parametrize(("times", "status"), [(1, "ok"), (2, "refused")])
def test_a_time_beyond_light_is_measured_again_then_refused(times, status, referee, task, monkeypatch):
    beyond = Measured(claimed=900.0, seen=20.0, bound=40.0, unit="GB/s")
    answers = iter([beyond] * times)
    monkeypatch.setattr(speed_of_light, "beyond_light", lambda *of: next(answers, None))
    result = referee.evaluate(task, candidate())
    assert result.status == status
    assert [v.rule for v in result.violations] == ["speed_of_light"] * (status == "refused")
    assert result.rests_on_measurement == (status == "refused")
    if status == "refused":
        assert "900 GB/s" in result.violations[0].message


def broken(body, setup=KERNEL, imports=""):
    return candidate(body, setup, imports)


FAILURES = {
    "wrong values": ("wrong_result", broken("    out = torch.zeros_like(a)\n    return out")),
    "an exception": ("runtime_error", broken("    raise ValueError('not today')")),
    "a segfault": (
        "runtime_error",
        broken(
            HONEST,
            KERNEL.replace("const float x", "*reinterpret_cast<volatile int*>(8) = 1;\n    const float x"),
        ),
    ),
    "an endless loop in C++": (
        "timeout",
        broken(
            HONEST, KERNEL.replace("const float x", "for (volatile int k = 0; k < 2;) {}\n    const float x")
        ),
    ),
    "too much memory": ("out_of_memory", broken("    torch.empty(1 << 34)\n" + HONEST)),
    "an exception at import": ("load_error", broken(HONEST, KERNEL + "\nx = 1 // 0")),
    "a manifest that is no JSON": ("load_error", Candidate(candidate().files | {MANIFEST: "Fused"})),
    "another pattern": (
        "mismatch",
        Candidate({k: v.replace("+ 1.0", "+ 2.0") for k, v in candidate().files.items()}),
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_its_own_status(name, judging_by, task):
    status, bad = FAILURES[name]
    config = CONFIG.model_copy(update={"timeout_s": 2.0}) if status == "timeout" else CONFIG
    result = judging_by(config).evaluate(task, bad)
    assert result.status == status, result.error
    assert result.error
    assert result.as_score is not None
    assert result.as_score < 0.5
    if status == "mismatch":
        mismatch = result.graphs[0].mismatches[0]
        assert "2.0" in mismatch.reason
        assert "1.0" in mismatch.reason


def test_what_a_candidate_says_can_be_written_down_and_shown(referee, task):
    body = "    raise ValueError('bad ' + chr(0xD800) + chr(27) + '[2J' + chr(0) + ' not today')"
    result = referee.evaluate(task, broken(body))
    assert result.status == "runtime_error"
    assert "bad \\ud800\\x1b[2J\\x00 not today" in result.error
    assert json.loads(result.model_dump_json())["error"] == result.error


def test_a_refused_candidate_is_refused_on_every_subgraph(referee, task):
    body = (
        "    out = torch.empty_like(a)\n    if a.dtype == torch.float32:\n"
        "        kernel(out, a, b, a.numel())\n    return out"
    )
    result = referee.evaluate(task, broken(body))
    assert result.status == "refused"
    assert [graph.status for graph in result.graphs] == ["refused"] * 3
    assert [graph.speedup for graph in result.graphs] == [None] * 3
    assert list(result.es.values()) == pytest.approx([0.1] * 15)


TWO_KERNELS = (
    KERNEL.replace("const float x", "oops x")
    + """
other = cpp_kernel(
    \"\"\"
void halve(float* out, const float* a, int64_t n) {
  out[0] = missing;
}\"\"\",
    "halve",
)"""
)


def test_one_evaluation_tells_every_kernel_that_does_not_build_and_each_error_once(referee, task):
    body = HONEST.replace("    return out", "    other(out, a, a.numel())\n    return out")
    bad = broken(body, TWO_KERNELS)
    result = referee.evaluate(task, bad)
    assert {graph.status for graph in result.graphs} == {"compile_error"}
    assert {graph.dtype for graph in result.graphs} == {"float32", "bfloat16"}
    text = observation(result, files=bad.files)
    assert text.count("silu_mul_add.cpp:4:5: error: ‘oops’ was not declared in this scope") == 1
    assert text.count("halve.cpp:3:12: error: ‘missing’ was not declared in this scope") == 1
    assert "compile_error x 3" in text or "compile_error in" in text
    assert "(Fused.py:" in text


BROKEN_TRITON = """
import triton
import triton.language as tl

@triton.jit
def first(x):
    tl.no_such_thing(x)

@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=[])
@triton.jit
def second(x):
    tl.store(x, missing)
"""


@pytest.mark.gpu
def test_every_triton_kernel_that_does_not_compile_is_told(task):
    body = "    out = torch.empty_like(a)\n    first[(1,)](out)\n    second[(1,)](out)\n    return out"
    with Referee(CONFIG.model_copy(update={"device": "cuda"})) as referee:
        result = referee.evaluate(task, candidate(body, BROKEN_TRITON))
    assert (result.status, result.unrecorded) == ("compile_error", True)
    lines = result.error.splitlines()
    assert len(lines) == 2 and "no_such_thing" in lines[0] and "missing" in lines[1], result.error
    assert "(Fused.py:" in lines[0]


def test_a_kernel_that_builds_does_not_run_where_another_one_was_left_out(referee, task):
    """Subgraphs whose kernels build are judged and timed as ever, by a worker of their own."""
    narrow = "if constexpr (sizeof(T) == 2) { static_assert(sizeof(T) == 4); }\n    const float x"
    result = referee.evaluate(task, broken(HONEST, KERNEL.replace("const float x", narrow)), bar=0.01)
    assert [graph.status for graph in result.graphs] == ["ok", "ok", "compile_error"]
    assert all(graph.speedup for graph in result.graphs[:2])


def test_one_evaluation_tells_every_file_that_does_not_load(referee, task):
    files = candidate().files | {
        "Second.py": "import torch\n\n\ndef pattern(a, b):\n    return a +\n",
        "Third.py": '"""No roles."""\n',
        MANIFEST: '["Fused", "Second", "Third"]',
    }
    result = referee.evaluate(task, Candidate(files))
    assert result.status == "load_error"
    assert "Second.py:5: SyntaxError" in result.error
    assert "Third.py: defines no function pattern, replacement_args, replacement_func" in result.error


def test_one_evaluation_tells_what_is_broken_on_every_subgraph(referee, task):
    body = (
        "    if a.dtype == torch.float32:\n        return a * b\n"
        "    if a.dtype == torch.bfloat16:\n        return b - a\n    return a"
    )
    result = referee.evaluate(task, broken(body))
    lines = [violation.line for violation in result.violations]
    source = broken(body).files["Fused.py"].splitlines()
    assert [source[line - 1].strip() for line in lines] == ["return a * b", "return b - a"]
    assert {graph.status for graph in result.graphs} == {"refused"}
    assert result.unrecorded


def test_a_missing_dtype_is_told_beside_a_pattern_that_does_not_match(referee, task):
    setup = KERNEL.replace("<class T> void silu_mul_add(T*", "<class O, class T> void silu_mul_add(O*")
    files = broken(HONEST.replace("empty_like(a)", "empty(a.shape)"), setup).files
    files |= {"Fused.py": files["Fused.py"].replace("* b + 1.0\n", "* b + 2.0\n")}
    text = observation(referee.evaluate(task, Candidate(files)))
    assert "\nstatus: mismatch (not run)\n" in text
    assert "the pattern has 2.0, the graph 1.0" in text
    assert text.count("output 0 is float32, eager's is bfloat16") == 1


def test_what_gives_no_plan_needs_no_worker_and_says_so(referee, task):
    bad = broken("    return torch.nn.functional.silu(a) * b + 1.0")
    result = referee.evaluate(task, bad)
    assert result.unrecorded
    assert list(result.es.values()) == pytest.approx([0.1] * 15)
    assert result == evaluate_refused(task, bad, CONFIG, result.violations)
    assert not verdict(result)["is_run"]
    assert "\nstatus: refused (not run)\n" in observation(result)


def roughly(condition):
    """Where `condition` holds, one value in 128 is an eighth off: they agree, but not at a strict t."""
    source = KERNEL.replace(
        "T(round_to<T>(s * y) + 1.0f)", "T((round_to<T>(s * y) + 1.0f) * (i % 128 == 3 ? by : 1.0))"
    )
    source = source.replace("int64_t n)", "int64_t n, double by)")
    return broken(
        f"    out = torch.empty_like(a)\n    by = 1.12 if {condition} else 1.0\n"
        "    kernel(out, a, b, a.numel(), by)\n    return out",
        source,
    )


def test_an_inexact_candidate_is_right_and_diagnosed_as_inexact(referee, tmp_path):
    """A fused kernel that keeps float32 is correct, but fails at strict t: AS is far below its speedups."""
    write_subgraph(tmp_path / "graphs" / "g0", [64, 64], "bfloat16")
    (tmp_path / "graph_list.txt").write_text("graphs/g0\n")
    task = load_task(tmp_path)
    fused = candidate(setup=KERNEL.replace("round_to<T>(s * y)", "(s * y)"))
    result = referee.evaluate(task, fused)
    [graph] = result.graphs
    assert (result.status, result.inexact()) == ("ok", [graph])
    assert result.as_score < 0.9 * result.gmean_speedup and graph.passes_from_t > -5
    found = diagnose(result, MACHINE)
    assert found.label == "inexact"
    assert f"{graph.name} (bfloat16) fails at t = {graph.passes_from_t - 1}" in found.text
    exact = referee.evaluate(task, candidate())
    assert exact.inexact() == []


def test_wrong_subgraphs_are_timed_only_beside_a_right_one(referee, task):
    none = referee.evaluate(task, roughly("True"))
    assert none.status == "wrong_result"
    assert [graph.status for graph in none.graphs] == ["wrong_result"] * 3
    assert none.timing == "none"
    assert all(graph.speedup is None for graph in none.graphs)
    assert all(graph.passes_from_t > -3 for graph in none.graphs)
    some = referee.evaluate(task, roughly("a.dtype == torch.bfloat16"), bar=0.01)
    assert (some.status, some.timing) == ("wrong_result", "wall")
    assert [graph.status for graph in some.graphs] == ["ok", "ok", "wrong_result"]
    assert all(graph.speedup for graph in some.graphs)


def test_eager_in_a_candidates_place(referee, task):
    result = referee.evaluate(task, "eager")
    assert (result.status, result.candidate, result.timing) == ("ok", "eager", "wall")
    assert [graph.passes_from_t for graph in result.graphs] == [-10] * 3
    assert [graph.matches for graph in result.graphs] == [0] * 3
    assert result.as_low <= result.as_score <= result.as_high
    assert result.violations == []


def test_a_graph_without_inputs_is_judged_and_timed(referee, tmp_path):
    model = (
        "import torch\n\nclass GraphModule(torch.nn.Module):\n    def forward(self):\n"
        "        return (torch.arange(0, 1000).view(1, -1).repeat(2, 1),)\n"
    )
    place = write_subgraph(tmp_path / "positions", [4, 64], model=model)
    (place / "weight_meta.py").write_text("")
    [graph] = referee.evaluate(load_task(place), "eager").graphs
    assert (graph.status, graph.error) == ("ok", None) and graph.trials > 0


@pytest.mark.parametrize("limit", ["graphs", "bytes"])
def test_references_beyond_a_limit_are_let_go_with_their_descriptors(referee, task, limit, monkeypatch):
    own = referee._baseline
    for key in list(own._kept):
        own._forget(key)
    if limit == "graphs":
        monkeypatch.setattr(keeping, "KEPT_GRAPHS", 1)
    else:
        monkeypatch.setattr(keeping, "KEPT_BYTES", 1)
        monkeypatch.setattr(keeping, "_KEPT_SHARE", 1 << 50)
    opened = []
    for subgraph in task.subgraphs:
        latest = own.reference(subgraph, "direct")
        opened.append(arenas())
        assert list(own._kept.values()) == [latest]
    assert len(set(opened)) == 1 and opened[0] > 0


def arenas():
    """Descriptors of shared memory that this process has: others come and go beside, as workers do."""
    gc.collect()  # what an earlier test left
    opened = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum("passagent-arena" in path for path in opened)


def test_what_another_task_left_gives_way_where_it_is_much(referee, task, tmp_path, monkeypatch):
    own = referee._baseline
    write_subgraph(tmp_path / "other", [8, 64])
    other = load_task(tmp_path / "other")
    for one in (task, other):
        assert referee.evaluate(one, candidate()).status == "ok"
    assert len({reference.subgraph.name for reference in own._kept.values()}) == 4
    monkeypatch.setattr(keeping, "KEPT_BYTES", 1)
    assert referee.evaluate(task, candidate()).status == "ok"
    names = [subgraph.name for subgraph in task.subgraphs]
    assert [reference.subgraph.name for reference in own._kept.values()] == names
    own._worker.kill()
    own.turn_to(other.subgraphs, "direct")  # it is gone with what it held
    assert not own._kept
    assert referee.evaluate(task, candidate()).status == "ok"


@pytest.mark.parametrize(("most", "sets"), [(1 << 26, 11), (4095, BEYOND_SET + 3)])
def test_what_makes_much_of_little_is_large(referee, tmp_path, monkeypatch, most, sets):
    """128 elements become 4096: computed in float64, and on the last sets, only where those are few."""
    spread = MODEL.replace("tmp_0 * in_1", "tmp_0 * in_1.reshape(-1, 1)")
    write_subgraph(tmp_path / "spread", [64], model=spread)
    monkeypatch.setattr(keeping, "SMALL", most)
    [subgraph] = load_task(tmp_path / "spread").subgraphs
    made = referee._baseline.reference(subgraph, "direct")
    assert [expected.eager[0].numel() for expected in made.expected] == [4096] * sets
    assert {expected.known for expected in made.expected[:SETS]} == {sets == 11}


def test_references_are_kept_for_an_epoch_and_then_drawn_anew(referee, task):
    subgraph = task.subgraphs[0]
    first = referee._baseline.reference(subgraph, "direct")
    values = [one.eager[0].clone() for one in first.expected]
    assert len(values) > SETS
    assert first.size > first.arena.size + sum(value.nbytes for value in values)  # and in float64
    again = first
    for _ in range(2 * baseline.EPOCH):
        again, before = referee._baseline.reference(subgraph, "direct"), again
        if again is not before:
            break
        assert all(
            torch.equal(one.eager[0].nan_to_num(), value.nan_to_num())
            for one, value in zip(again.expected, values, strict=True)
        )
    assert again is not first
    assert not any(
        torch.equal(one.eager[0], value) for one, value in zip(again.expected, values, strict=True)
    )
    assert referee._baseline.reference(subgraph, "direct") is again
    assert referee._baseline.reference(task.subgraphs[1], "direct") is not again
    assert referee._baseline.reference(subgraph, "direct") is again  # another one's does not push it out
    assert referee.evaluate(task, candidate()).status == "ok"


def test_a_candidate_that_comes_again_is_judged_on_other_values(referee, task):
    subgraph, judged = task.subgraphs[0], candidate()

    def values():
        return referee._baseline.reference(subgraph, "direct")

    assert referee.evaluate(task, judged).status == "ok"
    first = values()
    assert referee.evaluate(task, candidate(setup=f"{KERNEL}\nx = 1")).status == "ok"
    assert values() is first
    assert referee.evaluate(task, judged).status == "ok"
    assert values() is not first


CONJUGATE = """import torch

class GraphModule(torch.nn.Module):
    def forward(self, in_0, in_1):
        tmp_0 = torch.nn.functional.gelu(in_0 * in_1)
        return (tmp_0, torch.view_as_complex(in_0).%s)
"""


@pytest.mark.parametrize("operator", ["conj()", "conj().imag"])
def test_an_output_that_torch_conjugates_lazily_is_handed_over_as_it_reads(referee, tmp_path, operator):
    write_subgraph(tmp_path / "conjugate", [4, 2], model=CONJUGATE % operator)
    [subgraph] = load_task(tmp_path / "conjugate").subgraphs
    made = referee._baseline.reference(subgraph, "direct")
    given = torch.view_as_complex(made.values(0, 1, made.rotation.first()))
    assert torch.equal(
        made.expected[1].eager[1], eval(f"values.{operator}.resolve_conj().resolve_neg()", {"values": given})
    )
    assert referee.evaluate(load_task(tmp_path / "conjugate"), "eager").status == "ok"


def test_inputs_differ_from_referee_to_referee(referee, of_one_thread, task):
    theirs = of_one_thread._baseline.reference(task.subgraphs[0], "direct").expected
    mine = referee._baseline.reference(task.subgraphs[0], "direct").expected
    assert not any(torch.equal(a.eager[0], b.eager[0]) for a, b in zip(mine, theirs, strict=True))


def test_the_protections_in_force_are_in_the_result(referee, task):
    result = referee.evaluate(task, candidate())
    assert result.protections
    assert all(state == "on" or state.startswith("off: ") for state in result.protections.values())
    worker = referee.workers.server.fork(6)
    assert result.protections == worker.protections | tools.protections()
    worker.kill()


def test_a_text_that_cannot_be_read_ends_nothing(referee, task):
    """The referee's own process parses it, too, to see whether it imports Triton."""
    result = referee.evaluate(task, candidate(setup=f"{KERNEL}\nx = {'-' * 20000}1\n"))
    assert (result.status, result.error) == ("load_error", "Fused.py: nested too deeply to be compiled")


def test_nothing_of_the_parents_environment_reaches_a_candidate(of_one_thread):
    worker = of_one_thread.workers.server.fork(None, sandboxed=False)  # a sandboxed one's cannot be read
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
    fork_server = Path(f"/proc/{of_one_thread.server.process.pid}/environ").read_bytes()
    worker.kill()
    assert environment
    assert b"sk-planted-secret" not in environment + fork_server


def test_a_subgraph_whose_eager_fails_is_the_tasks_fault(referee, tmp_path):
    model = (
        "import torch\n\nclass GraphModule(torch.nn.Module):\n    def forward(self, in_0, in_1):\n"
        "        return (in_0 @ in_1,)\n"
    )
    task = load_task(write_subgraph(tmp_path / "broken", [4, 64], model=model))
    with pytest.raises(TaskError, match="broken"):
        referee.evaluate(task, candidate())


TRITON = """import triton
import triton.language as tl


@triton.jit
def silu_mul_add(out, a, b, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(a + offsets, mask=mask).to(tl.float32)
    y = tl.load(b + offsets, mask=mask).to(tl.float32)
    s = (x * tl.sigmoid(x)).to(out.dtype.element_ty).to(tl.float32)
    p = (s * y).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + offsets, p + {add}, mask=mask)
"""
LAUNCH = (
    "    out = torch.empty_like(a)\n    n = a.numel()\n"
    "    silu_mul_add[(triton.cdiv(n, 256),)](out, a, b, n, BLOCK=256)\n    return out"
)


def triton_candidate(add="1.0"):
    return candidate(
        LAUNCH, TRITON.format(add=add).partition("\n\n\n")[2], "import triton\nimport triton.language as tl"
    )


def test_a_triton_pass_on_the_cpu_is_told_where_it_runs(referee, task):
    result = referee.evaluate(task, triton_candidate())
    assert (result.status, result.unrecorded, result.error) == ("compile_error", True, NO_TRITON)


@pytest.mark.gpu
def test_a_triton_pass_is_timed_on_a_gpu(task):
    with Referee(CONFIG.model_copy(update={"device": "cuda"})) as referee:
        result = referee.evaluate(task, triton_candidate())
        wrong = referee.evaluate(task, triton_candidate("1.5"))
    assert (result.status, result.timing) == ("ok", "wall")
    assert wrong.status == "wrong_result"


@pytest.mark.gpu
def test_two_triton_kernels_that_do_not_compile_are_both_told_on_a_gpu(task):
    kernel = TRITON.format(add="1.0").partition("\n\n\n")[2]
    bad = kernel.replace("tl.arange(0, BLOCK)", "tl.arange(0, 3)")  # in order by its text, but not to Triton
    other = kernel.replace("silu_mul_add", "other").replace("tl.arange(0, BLOCK)", "tl.arange(0, 5)")
    launch = LAUNCH.splitlines()[2]
    body = LAUNCH.replace(launch, f"{launch}\n{launch.replace('silu_mul_add', 'other')}")
    one = candidate(body, f"{bad}\n\n{other}", "import triton\nimport triton.language as tl")
    with Referee(CONFIG.model_copy(update={"device": "cuda"})) as referee:
        result = referee.evaluate(task, one)
    assert result.status == "compile_error"
    assert all(graph.error.count("power of 2") == 2 for graph in result.graphs), result.graphs[0].error
