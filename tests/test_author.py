"""What an author of passes meets: one conversation with the real evaluator, whose evaluations are counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_search
from tiny import write_subgraph

from passagent.agent.tokens import tokens
from passagent.cli import running
from passagent.evaluator.result import MANIFEST
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import Message
from passagent.sandbox.environment import worker_threads
from passagent.search.setup import Parts
from passagent.store import Store, runs
from passagent.store.trajectories import find_episode, trajectory

MODEL = """import torch

class GraphModule(torch.nn.Module):

    def forward(self, in_0, in_1):
        tmp_0 = in_0 * 0.5
        tmp_1 = torch.nn.functional.softmax(tmp_0, dim=-1)
        tmp_2 = tmp_1 + in_1
        tmp_3 = torch.nn.functional.leaky_relu(tmp_2, 0.1, False)
        return (tmp_3,)
"""
PASS = '''"""SAID"""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel("""
HEAD
template <class T> void whole(T* out, const T* a, const T* b, int64_t rows, int64_t n) {
  std::vector<float> e(n);
  for (int64_t r = 0; r < rows; ++r) {
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; ++i) {
      e[i] = round_to<T>(float(a[r * n + i]) * 0.5f);
      m = e[i] > m || std::isnan(e[i]) ? e[i] : m;
    }
    for (int64_t i = 0; i < n; ++i) s += e[i] = std::exp(e[i] - m);
    for (int64_t i = 0; i < n; ++i) {
      const float v = round_to<T>(round_to<T>(e[i] / s) + float(b[r * n + i]));
      out[PLACE] = T(v > 0 ? v : v * 0.1f);
    }
  }
}""", "whole")


def pattern(a, b):
    soft = torch.nn.functional.softmax(a * SCALE, dim=AXIS)
    return torch.nn.functional.leaky_relu(soft + b, SLOPE, False)


def replacement_args(a, b):
    return (a, b)


def fused(a, b):
    n = a.shape[-1]
    out = torch.empty_like(a, dtype=DTYPE)
    kernel(out, a, b, a.numel() // n, n)
    return out


def replacement_func():
    return fused
'''
RIGHT = {"PLACE": "r * n + i", "SCALE": "0.5", "AXIS": "-1", "SLOPE": "0.1", "DTYPE": "a.dtype", "HEAD": ""}
EVALUATE, CHECK = ("pass_evaluator", {}), ("check", {})


def version(said: str, then: tuple[str, dict[str, object]] = EVALUATE, **changes: str) -> Message:
    """A reply that writes the pass, with these parts of it changed, and has it looked at."""
    text = PASS
    for name, part in (RIGHT | changes | {"SAID": said}).items():
        text = text.replace(name, part)
    files = {"Fused.py": text, MANIFEST: '["Fused"]'}
    edits = [("file_editor", {"command": "create", "path": p, "file_text": t}) for p, t in files.items()]
    return calling(*edits, then)


REPLIES = [
    version("Nothing fits.", SCALE="2.0", AXIS="1", SLOPE="0.2", HEAD="static int left = missing;"),
    version("Headers.", SCALE="2.0", HEAD="#include <unistd.h>\n#include <sys/mman.h>"),
    version("Another dtype.", DTYPE="torch.float64"),
    version("A wrong stride.", PLACE="(r * n + i + 1) % (rows * n)"),
    version("Beside it.", PLACE="r * n + i + 2"),
    version("Far off.", PLACE="r * n + i + (int64_t(1) << 32)"),
    version("Right.", CHECK),
    calling(EVALUATE),
    version("Right again.", HEAD="static const int unused = 1;"),
    calling(("search_knowledge", {"query": "row softmax on the CPU"})),
    "It is right.",
]


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory, referee_inside: None) -> list[Message]:
    """System and task message, and what follows; two graphs, float32 and bfloat16."""
    root = tmp_path_factory.mktemp("author")
    task, names = root / "task", [f"graphs/{dtype}" for dtype in ("float32", "bfloat16")]
    for name in names:
        write_subgraph(task / name, [6, 40], Path(name).name, MODEL)
    (task / "graph_list.txt").write_text("\n".join(names) + "\n")
    settings = tiny_search.settings(1, 1, 1) | {"evaluator.budget_s": 1e-6}
    parts = Parts(ScriptedModel(REPLIES), None, tiny_search.diagnose)
    running.run(str(task), {"settings": settings, "runs_dir": root / "runs"}, True, parts)
    with Store.open(root / "runs") as store:
        run = runs.find_run(store, "last")
        episode = trajectory(store, run, find_episode(store, run, 1))
        assert runs.get_run(store, run.id).evaluations == 5  # all that was run, and nothing else
    return [turn.message for turn in episode.messages]


def results(conversation: list[Message]) -> list[str]:
    """What was answered to each reply's last call."""
    asked = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
    return [conversation[after - 1]["content"] for after in asked[1:]]


def left(text: str) -> int:
    """How many evaluations an answer says are left."""
    found = re.search(r"left: .*, (\d+) of \d+ evaluations", text)
    assert found is not None, text
    return int(found[1])


def test_an_evaluation_counts_only_where_something_was_run(conversation: list[Message]) -> None:
    counted = [left(text) for text in results(conversation)]
    assert [counted[0] - count for count in counted] == [0, 0, 0, 1, 2, 3, 3, 4, 5, 5]


def test_the_task_states_the_threads_of_a_timed_call(conversation: list[Message]) -> None:
    threads = worker_threads(None)
    assert f"OpenMP threads in a timed call, eager's and yours: {threads} " in conversation[1]["content"]


def test_a_mismatch_names_every_literal_and_what_does_not_build(conversation: list[Message]) -> None:
    text, refused, dtype, *_ = results(conversation)
    for said in ("has 2.0, the graph 0.5", "has 1, the graph -1", "has 0.2, the graph 0.1"):
        assert text.count(said) == 1
    assert "was not declared in this scope" in text and "status: mismatch (not run)" in text
    assert "#include <unistd.h>" in refused and "#include <sys/mman.h>" in refused
    assert "has 2.0, the graph 0.5" in refused and "status: refused (not run)" in refused
    for name in ("float32", "bfloat16"):
        assert f"output 0 is float64, eager's is {name}" in dtype
    assert "status: runtime_error (not run)" in dtype


def test_a_wrong_value_and_a_write_beside_a_tensor_are_named(conversation: list[Message]) -> None:
    wrong, beside, far = results(conversation)[3:6]
    element = r"output 0 at \[\d, \d+\]: expected \S+, got \S+; it passes (at no t|from t = -?\d+ on)"
    assert len(re.findall(element, wrong)) == 2
    assert "element 240 of a float32[6, 40] tensor, which has 0 to 239" in beside
    assert "argument 0 at byte 17179869184" in far and "argument 0 at byte 8589934592" in far


def test_a_check_shows_the_plans_of_all_dtypes_once(conversation: list[Message]) -> None:
    text = results(conversation)[6]
    assert "Fused.py on float32, bfloat16\n" in text and text.count("launch whole") == 1


def test_a_diagnosis_is_told_once_and_passes_are_not_left_over(conversation: list[Message]) -> None:
    first, second = results(conversation)[7:9]
    assert first.count("status: ok") == second.count("status: ok") == 1
    assert "diagnosis: As it is." in first and "diagnosis:" not in second
    assert "operators 4 -> 1\n" in first


def test_a_search_of_the_knowledge_is_short(conversation: list[Message]) -> None:
    text = results(conversation)[9].partition("\nleft: ")[0]
    assert len(re.findall(r"^\[\S+\.\S+\] ", text, re.MULTILINE)) == 2
    assert tokens(text) <= 400
