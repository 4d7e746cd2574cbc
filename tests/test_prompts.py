"""The prompts: complete, honest about the task, and with an example that works."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_search
import torch
from closeness import assert_as_exact_as_eager
from tiny import MODEL, write_subgraph, write_task

from passagent.agent.context import Attempt, EpisodeContext, JudgedNode
from passagent.agent.prompt import TOKENS, compose, note_of, prompts_hash, roles, short_note, shown_files
from passagent.agent.taskview import figures, view_task
from passagent.agent.tokens import tokens
from passagent.config import EvaluatorConfig, load_config
from passagent.errors import UsageError
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph, Output
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.target import target_of
from passagent.experience import knowledge
from passagent.experience.hints import Hint, load_hints
from passagent.experience.knowledge import Passage
from passagent.search.episode_context import task_context
from passagent.tasks import load_task, resources

CPU = target_of(EvaluatorConfig())


def context(path: Path, **fields: Any) -> EpisodeContext:
    known = {"target": CPU, "device_name": "some CPU", "role": "general", "seed": 77}
    return EpisodeContext(**{"task": load_task(path), **known, **fields})


def hint(name: str, advice: str) -> Hint:
    return Hint(id=name, trigger=["start"], advice=advice, source="a test", confidence=0.5)


@pytest.mark.parametrize("name", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "role", ["general", "fusion", "memory", "launch", "parameters", "numerics", "algorithm", "seed"]
)
def test_every_role_and_target_composes(tmp_path: Path, name: str, role: str) -> None:
    target = target_of(EvaluatorConfig(device=name))
    system, user = compose(context(write_task(tmp_path / "t"), target=target, role=role))
    assert (system["role"], user["role"]) == ("system", "user")
    path = load_task(tmp_path / "t").path
    assert user["content"].splitlines()[-3:] == [
        f"Task directory: {path}",
        f"Target: {name}",
        "Episode seed: 77",
    ]
    assert ("cpp_kernel" in system["content"]) == (name == "cpu")
    assert ("triton.jit" in system["content"]) == (name == "cuda")
    assert "tmp_1 = tmp_0 * in_1" in user["content"]
    assert "tmp_0 = None" not in user["content"]
    assert role in roles()
    assert "{{" not in system["content"] + user["content"]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_all_that_a_model_is_shown_names_only_what_works_on_its_target(tmp_path: Path, device: str) -> None:
    """Prompts with every role and hint, and the tools' descriptions."""
    target = target_of(EvaluatorConfig(device=device))
    name = {"cpu": "some CPU", "cuda:0": "NVIDIA H200"}[device]
    hints = [hint for hint in load_hints() if not hint.context.targets or target.name in hint.context.targets]
    for role in roles():
        shown = context(
            write_task(tmp_path / role),
            target=target,
            device_name=name,
            role=role,
            hints=hints,
        )
        system, user = compose(shown, most=TOKENS | {"hints": 100_000})
        task = (
            user["content"].replace(str(tmp_path), "").replace(f"- {name}\n", "").rpartition("\nTarget: ")[0]
        )
        for text in (system["content"], json.dumps(system["tools"]), task):
            found = target.foreign.search(text)
            assert found is None, text[max(0, found.start() - 100) : found.end() + 100]
    assert ("constraints/cpp_kernel.md" in knowledge.read(target=target)) == (device == "cpu")


def test_everything_known_is_shown(tmp_path: Path) -> None:
    files = {"A.py": '"""Fuses it."""', MANIFEST: '["A"]'}
    diagnosis = json.dumps({"label": "latency_bound", "text": "latency-bound"})
    evaluation = tiny_search.judge(Candidate(files)).model_copy(update={"status": "ok", "as_score": 1.25})
    parent = JudgedNode(tiny_search.node_of(7, as_score=1.25, diagnosis=diagnosis), files, evaluation)
    attempts = [
        Attempt(tiny_search.node_of(3, status="mismatch", note='Fuses more. [plan: {"tile": 4}]')),
    ]
    _, user = compose(
        context(
            write_task(tmp_path / "t"),
            parent=parent,
            best_as=1.5,
            attempts=attempts,
            hints=[hint("few-launches", "Launch once, then rest.")],
            migrated=True,
        )
    )
    for expected in (
        "node 7, an elite of another island",
        "AS 1.2500",
        '"""Fuses it."""',
        "Diagnosis: latency-bound",
        "so far: 1.5000",
        "- node 3 (from the task): mismatch, AS none: Fuses more.\n",
        "- [few-launches] Launch once, then rest.",
        "at most 20 replies and 8 evaluations",
    ):
        assert expected in user["content"]
    assert "plan:" not in user["content"]


def test_a_task_with_recorded_values_composes(tmp_path: Path) -> None:
    write_subgraph(tmp_path / "t", [2, 2])
    file = tmp_path / "t" / "weight_meta.py"
    file.write_text(file.read_text().replace("dtype =", "data = [[1.0, 2.0], [3.0, 4.0]]\n\tdtype =", 1))
    assert load_task(tmp_path / "t").subgraphs[0].inputs[0].data is not None
    _, user = compose(context(tmp_path / "t"))
    assert "[2, 2]" in user["content"]


def test_an_unknown_role_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'fusion'"):
        compose(context(write_task(tmp_path / "t"), role="fussion"))


def test_graphs_are_grouped_by_source_and_shape(tmp_path: Path) -> None:
    root = tmp_path / "t"
    other = MODEL.replace("1.0", "2.0")
    unlike = "import torch\n\nclass GraphModule(torch.nn.Module):\n"
    unlike += "    def forward(self, in_0, in_1):\n        return (in_0 - in_1,)\n"
    for name, shape, dtype, model in (
        ("a", [4, 8], "float32", MODEL),
        ("b", [4, 8], "float16", MODEL),
        ("c", [2000, 1000], "float32", MODEL),
        ("d", [4, 8], "float32", other),
        ("e", [4, 8], "float32", unlike),
    ):
        write_subgraph(root / "graphs" / name, shape, dtype, model)
    (root / "graph_list.txt").write_text("".join(f"graphs/{name}\n" for name in "abcde"))
    view = view_task(load_task(root), 12_000)
    assert [(v.label, v.graphs, v.is_difference, v.file) for v in view.variants] == [
        ("A", 3, False, "task/graphs/a/model.py"),
        ("B", 1, True, "task/graphs/d/model.py"),
        ("C", 1, False, "task/graphs/e/model.py"),
    ]
    assert view.variants[1].text == "tmp_2 = tmp_1 + 2.0"
    assert view.rows[0].startswith("| A | in_0 T[4, 8], in_1 T[4, 8] | float32, float16 | 32 | ")
    assert "| 2,000,000 |" in view.rows[1]
    assert (view.more_variants, view.more_rows) == (0, 0)


def test_outputs_operators_and_eagers_time_are_shown_for_each_subgraph(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path / "t"))
    _, before = compose(context(tmp_path / "t"))
    assert before["content"].count("not known yet | not measured yet |") == 2
    assert "3 operators: silu, mul, add." in before["content"]
    eager = tuple(
        EagerGraph(
            one.name,
            (Output((64, 4), one.dtype, (1, 64)), Output((2, 2), "int64", (2, 1))),
            ("silu", "mul", "add", "t"),
            8.04 if one.dtype == "float32" else 1234.5,
        )
        for one in task.subgraphs
    )
    _, after = compose(context(tmp_path / "t", eager=eager))
    assert "T[64, 4] strides (1, 64); int64[2, 2] | float32 8.0 us, bfloat16 1234 us |" in after["content"]
    assert "4 operators: silu, mul, add, t." in after["content"]
    assert "a result says which are left" in after["content"]


@pytest.mark.long
def test_the_cpu_example_computes_what_its_pattern_does() -> None:
    spec = importlib.util.spec_from_file_location(
        "example", resources.find("prompts/examples/cpu/FusedAddLayerNorm.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = torch.randn(2, 5, 7, 96, dtype=dtype).unbind()
        weight, bias = torch.randn(2, 96, dtype=dtype).unbind()
        got = module.replacement_func()(*module.replacement_args(x, y, weight, bias, 96, 1e-5))
        assert_as_exact_as_eager(got, module.pattern, [x, y, weight, bias, 96, 1e-5])


def test_shown_files_fit_and_keep_the_manifest() -> None:
    files = {"B.py": "b = 2\n" * 20_000, "A.py": "a = 1", MANIFEST: '["A"]'}
    shown = shown_files(files, 6000)
    assert list(shown) == sorted(files)
    assert shown["A.py"] == "a = 1"
    assert shown[MANIFEST] == '["A"]'
    assert shown["B.py"].endswith("view the file for the rest")
    assert "\n... " in shown["B.py"]
    assert sum(map(len, shown.values())) < 4 * 6000 + 200


@pytest.mark.parametrize(
    ("files", "note"),
    [
        (
            {MANIFEST: '["A", "B"]', "A.py": '"""First line.\nSecond."""', "B.py": '"""Other."""'},
            "First line.",
        ),
        ({MANIFEST: '["A"]', "A.py": "x = 1"}, ""),
        ({MANIFEST: '["A"]', "A.py": "def f(:"}, ""),
        ({MANIFEST: '["A"]'}, ""),
        ({MANIFEST: "[", "A.py": '"""x"""'}, ""),
        ({MANIFEST: '{"A": 1}', "A.py": '"""x"""'}, ""),
        ({MANIFEST: "[3]"}, ""),
        ({}, ""),
    ],
)
def test_the_note_of_a_candidate(files: dict[str, str], note: str) -> None:
    assert note_of(files) == note


def test_short_notes_leave_plans_out() -> None:
    assert short_note('Fuses a. [plan: {"a": [1]}]') == "Fuses a."
    assert len(short_note("x" * 500)) == 140


def test_a_users_prompt_overrides_and_changes_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prompts_hash()
    (tmp_path / "mine" / "prompts" / "roles").mkdir(parents=True)
    (tmp_path / "mine" / "prompts" / "roles" / "general.j2").write_text("Do as {{ context.rle }}.")
    monkeypatch.setenv("PASSAGENT_RESOURCES", str(tmp_path / "mine"))
    assert prompts_hash() != before
    import jinja2

    with pytest.raises(jinja2.UndefinedError):
        compose(context(write_task(tmp_path / "t")))
    (tmp_path / "mine" / "prompts" / "roles" / "general.j2").write_text("Do as you like.")
    assert "Do as you like." in compose(context(tmp_path / "t"))[1]["content"]


@pytest.mark.parametrize(("cores", "wanted", "threads"), [(1, None, 1), (8, None, 7), (8, 4, 4)])
def test_the_task_states_the_threads_of_a_machine_of_many_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, wanted: int | None, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    figures.cache_clear()
    config = load_config(None, {"evaluator.threads": wanted})
    begun = task_context(load_task(write_task(tmp_path / "t")), config, f"a CPU of {cores}")
    text = compose(begun)[1]["content"]
    figures.cache_clear()
    assert f"in a timed call, eager's and yours: {threads} (omp_get_max_threads() there" in text
    assert ("parallel regions gain nothing" in text) == (threads == 1)
    assert f"cores of this machine: {cores}\n" in text


def test_one_line_says_what_cpp_may_use_and_one_how_eager_rounds_numbers(tmp_path: Path) -> None:
    words = ("C++20", "`immintrin.h`", "`omp.h`", "vectors of GCC", "pragmas", "`static const`")
    for device, count, first in (("cpu", 1, "x + s"), ("cuda", 0, "remainder")):
        shown = context(write_task(tmp_path / device), target=target_of(EvaluatorConfig(device=device)))
        lines = compose(shown)[0]["content"].splitlines()
        assert len([line for line in lines if all(word in line for word in words)]) == count
        (line,) = [line for line in lines if "A Python number s beside a float16 or bfloat16" in line]
        assert f"eager rounds s to x's dtype first in `{first}`" in line and "s unrounded, in float" in line


SCALAR_OPERATORS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "x + s": lambda x, s: x + s,
    "x - s": lambda x, s: x - s,
    "s - x": lambda x, s: s - x,
    "add(alpha=s)": lambda x, s: torch.add(x, torch.ones_like(x), alpha=s),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "comparisons": torch.eq,
    "hardshrink": torch.nn.functional.hardshrink,
    "x * s": lambda x, s: x * s,
    "x / s": lambda x, s: x / s,
    "x // s": lambda x, s: x // s,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "celu": torch.nn.functional.celu,
    "softplus": torch.nn.functional.softplus,
    "softshrink": torch.nn.functional.softshrink,
    "threshold": lambda x, s: torch.nn.functional.threshold(x, s, 0.0),
}
"""Of a 16-bit tensor x and a number s."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_how_eager_rounds_a_number_is_told_as_measured(device: str, dtype: torch.dtype) -> None:
    """With s rounded first, or s as it is, the operator in float gives eager's values; not with the other."""
    x = (torch.arange(1, 8000) / 1000 - 4).to(dtype)
    measured = dict[str, str]()
    for name, operator in SCALAR_OPERATORS.items():
        differing = {"rounded": 0, "unrounded": 0}
        for s in (0.1, 0.3, 0.7, 1.7, 2.2):
            rounded = torch.tensor(s, dtype=torch.float64).to(dtype).item()
            values = torch.cat([x, torch.full((8,), rounded, dtype=dtype)]).to(device)
            got = operator(values, s)
            for kind, number in (("rounded", rounded), ("unrounded", s)):
                differing[kind] += int((operator(values.float(), number).to(got.dtype) != got).sum())
        assert sorted(map(bool, differing.values())) == [False, True], (name, differing)
        measured[name] = min(differing, key=lambda kind: differing[kind])
    text = resources.find(f"prompts/targets/{device}/kernels.md").read_text()
    (line,) = [line for line in text.splitlines() if "A Python number s" in line]
    first, *_ = line.partition("; it takes s unrounded")
    told = {n: "rounded" if n in first else "unrounded" for n in SCALAR_OPERATORS if n in line}
    assert told == {name: measured[name] for name in told}, measured
    assert len(told) >= len(SCALAR_OPERATORS) - 2, set(SCALAR_OPERATORS) - told.keys()


def test_figures_of_targets() -> None:
    text = "\n".join(figures("cuda", "NVIDIA H200"))
    assert "4800 GB/s (nominal)" in text and "227 KB shared memory a block" in text and "132 SMs" in text
    assert "unknown (not measured)" in text
    assert "unknown (not in passagent's table)" in "\n".join(figures("cuda", "NVIDIA GH200 480GB"))
    name, threads, *_ = figures("cpu", "some CPU", threads=3)
    assert name == "some CPU" and threads.startswith("OpenMP threads in a timed call, eager's and yours: 3 ")
    copies = Machine(1e-6, ((2**20, 9e10), (2**27, 3e10)), copy_threads=(1, 2))
    shown = "\n".join(figures("cpu", "some CPU", copies))
    assert "90 GB/s at 1 MiB with threads: 1, 30 GB/s at 128 MiB with threads: 2" in shown
    measured = figures("cuda", "NVIDIA H200", Machine(9.3e-6, ((2**20, 1e12), (2**27, 4.1e12))))
    assert "issuing one eager operator: 9.3 us (measured here)" in measured
    assert any("1e+03 GB/s at 1 MiB, 4.1e+03 GB/s at 128 MiB" in line for line in measured)


def test_the_examples_are_whole_pass_directories() -> None:
    for target in ("cpu", "cuda"):
        path = resources.find(f"prompts/examples/{target}/FusedAddLayerNorm.py")
        files = {path.name: path.read_text(), MANIFEST: json.dumps([path.stem])}
        assert note_of(Candidate(files).files).startswith("Residual add and layer norm")


def test_each_part_keeps_to_its_budget_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    root = tmp_path / "t"
    for number in range(30):
        long = MODEL.replace("1.0", f"{number}.5").replace(
            "        return", "        tmp_3 = tmp_2 * 1.0\n" * number + "        return"
        )
        write_subgraph(root / "graphs" / f"g{number}", [4, number + 1], model=long)
    (root / "graph_list.txt").write_text("".join(f"graphs/g{number}\n" for number in range(30)))
    source = '"""Fuses it."""\n' + "x = 1\n" * 3000
    files = {"A.py": source, MANIFEST: '["A"]'}
    evaluation = tiny_search.judge(Candidate(files)).model_copy(update={"error": "said\n" * 4000})
    parent = JudgedNode(tiny_search.node_of(7, as_score=1.2), files, evaluation)
    many = context(
        root,
        parent=parent,
        attempts=[
            Attempt(tiny_search.node_of(number, as_score=1.0, note=f"note {number} " + "w" * 100))
            for number in range(100)
        ],
        more_attempts=12,
        hints=[hint(f"hint-{number}", "advice " * 40) for number in range(40)],
        knowledge=[Passage("a/b.md", f"Section {number}", "text " * 200) for number in range(9)],
    )
    few = {"task": 900, "parent": 500, "evaluation": 300, "attempts": 200, "hints": 200, "knowledge": 600}
    _, user = compose(many, most=TOKENS | few)
    text = user["content"]
    assert tokens(text) < 900 + 500 + 300 + 200 + 200 + 600 + 900
    shown = re.findall(r"^- node (\d+) ", text, re.M)
    assert shown == [str(number) for number in range(100 - len(shown), 100)] and 0 < len(shown) < 20
    assert f"... {112 - len(shown)} earlier attempts not shown" in text
    assert "hint-0" in text and "hint-39" not in text and "hints that fit less not shown" in text
    assert "Section 0" in text and "Section 8" not in text and "passages not shown: search_knowledge" in text
    assert re.search(r"\.\.\. \d+ lines not shown; view the file for the rest", text)
    assert re.search(r"\.\.\. \d+ characters not shown \.\.\.", text)
    assert re.search(r"and \d+ more sources", text)
    assert text.splitlines()[-1] == "Episode seed: 77"


def test_passnet_is_the_papers_agent(tmp_path: Path) -> None:
    config = load_config("passnet")
    assert (config.search.islands, config.search.iters, config.agent.max_steps) == (1, 1, 50)
    assert config.agent.tools == ["file_editor", "pass_evaluator"]
    assert config.model.temperature == 0
    system, user = compose(context(write_task(tmp_path / "t"), limits=config.agent))
    assert [tool["name"] for tool in system["tools"]] == ["file_editor", "pass_evaluator"]
    assert "search_knowledge" not in system["content"] + user["content"]
    assert "at most 50 replies and 50 evaluations" in user["content"]
