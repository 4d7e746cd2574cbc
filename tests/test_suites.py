"""Problems of other suites become tasks; what does not is named in a word and a line."""

import itertools
import json
import shutil

import pytest
import torch
import torch.utils._pytree as pytree
from torch.profiler import ProfilerActivity, profile

from passagent.errors import UsageError
from passagent.tasks import constraints, load_task
from passagent.tasks.suites.forked_jobs import JobResult, Jobs, Refused
from passagent.tasks.suites.import_problems import RECORD, make_tasks, open_record
from passagent.tasks.suites.import_problems import import_problems as run_import
from passagent.tasks.suites.loading_problems import load_problem
from passagent.tasks.suites.problems import How, find_problems

HEAD = "import torch\nimport torch.nn as nn\n\n"
SCALED = """
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) * 2

batch_size = 4 * 16
width = 32

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
"""
PLAIN = """
class Model(nn.Module):
    def forward(self, x):
        {body}

def get_inputs():
    {inputs}

def get_init_inputs():
    return []
"""


def plain(body, inputs="return [torch.rand(4, 8)]"):
    return HEAD + PLAIN.format(body=body, inputs=inputs)


@pytest.fixture
def suite(tmp_path):
    """A directory in KernelBench's layout, and what writes a problem into it."""

    def write(name, text, level=1):
        place = tmp_path / "bench" / "KernelBench" / f"level{level}" / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "LICENSE").write_text("MIT License\n\nCopyright\n")
    write.root = tmp_path / "bench"
    return write


def test_problems_come_in_the_order_of_their_numbers_with_where_they_are_from(suite):
    for name in ("10_Tenth", "2_Second_", "1_First"):
        suite(name, HEAD)
    suite("1_Other", HEAD, level=2)
    found = find_problems(str(suite.root), [1, 2])
    assert [one.name for one in found] == [
        "level1_1_First",
        "level1_2_Second",
        "level1_10_Tenth",
        "level2_1_Other",
    ]
    assert found[1].origin.file == "KernelBench/level1/2_Second_.py"
    assert find_problems(str(suite.root / "KernelBench"), [2])[0].name == "level2_1_Other"


def test_a_place_without_problems_is_told_what_is_looked_for(suite, tmp_path):
    with pytest.raises(UsageError, match=r"level1/\*\.py"):
        find_problems(str(suite.root), [1])
    with pytest.raises(UsageError, match="no such file"):
        find_problems(str(tmp_path / "none"), [1])


TWICE = plain("return x[0] * x[1]", "return [(torch.rand(rows, *shape), torch.rand(rows))]")
CUTS = {
    "what depends on a size": (HEAD + SCALED, 1024, [(8, 32)], "batch_size = 8\n"),
    "sizes that must be equal": (
        TWICE + "\nrows = 256\nshape = (256,)\n",
        5000,
        [(32, 32), (32,)],
        "shape = (32,)",
    ),
    "a line that sets several": (
        plain("return x + 1", "return [torch.rand(rows, width)]") + "\nrows = 512; width = height = 16\n",
        1024,
        [(16, 16)],
        "rows = 16\nwidth = height = 16",
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_sizes_are_cut(suite, tmp_path, name):
    text, most, shapes, line = CUTS[name]
    suite("1_Cut", text)
    [problem] = find_problems(str(suite.root), [1])
    loaded = load_problem(problem, tmp_path, "cpu", most)
    assert [tuple(one.shape) for one in pytree.tree_leaves(loaded.model.args)] == shapes
    assert line in loaded.source
    loaded.model.module(*loaded.model.args)
    whole = load_problem(problem, tmp_path, "cpu", None)
    assert whole.cut == {} != loaded.cut


def test_inputs_that_no_constant_makes_smaller_are_too_large(suite, tmp_path):
    suite("1_Fixed", plain("return x + 1", "return [torch.rand(64, 64)]"))
    [problem] = find_problems(str(suite.root), [1])
    with pytest.raises(Refused) as refused:
        load_problem(problem, tmp_path, "cpu", 1024)
    assert refused.value.reason == "too_large"


def answering(monkeypatch, answers):
    """Problems are answered here, in no process; the names of those that were asked."""
    asked = []

    def run(jobs, function, payload):
        asked.append(payload["problem"]["name"])
        return answers[asked[-1]]

    monkeypatch.setattr(Jobs, "run", run)
    return asked


def made(tasks, **more):
    return JobResult(value={"tasks": tasks, **more})


def payload_of(suite):
    """The payload of the only problem."""
    [problem] = find_problems(str(suite.root), [1])
    return {"problem": problem.model_dump(), "device": "cpu", "most_bytes": None, "compute_ops": "allowed"}


FILES = {"g": {"model.py": "x", "weight_meta.py": ""}}


def test_an_import_goes_on_where_it_ended(suite, tmp_path, monkeypatch):
    suite("1_First", HEAD)
    suite("2_Second", HEAD + "# two")
    out = tmp_path / "tasks"
    asked = answering(
        monkeypatch, {"level1_1_First": made({"": FILES}), "level1_2_Second": JobResult(reason="random")}
    )
    found = lambda: find_problems(str(suite.root), [1])  # noqa: E731
    assert [row.reason for row in run_import(found(), out, How())] == [None, "random"]
    assert [row.reason for row in run_import(found(), out, How())] == [None, "random"]
    assert asked == ["level1_1_First", "level1_2_Second"]
    suite("2_Second", HEAD + "# changed")
    with (out / RECORD).open("a") as record:
        record.write('{"name": "level1_1_Fir')  # as a killed process leaves it
    (out / ".level1_9.k1ll").mkdir()
    shutil.rmtree(out / "level1_1_First")
    list(run_import(found(), out, How()))
    assert sorted(asked[2:]) == ["level1_1_First", "level1_2_Second"]
    assert not list(out.glob(".*")) and (out / "level1_1_First" / "graph_list.txt").is_file()
    assert open_record(out).rows.keys() == {"level1_1_First", "level1_2_Second"}


def test_what_found_no_memory_is_tried_again(suite, tmp_path, monkeypatch):
    suite("1_Large", HEAD)
    [problem] = find_problems(str(suite.root), [1])
    answers = {"level1_1_Large": JobResult(reason="memory")}
    asked = answering(monkeypatch, answers)
    assert [row.reason for row in run_import([problem], tmp_path / "tasks", How())] == ["memory"]
    answers["level1_1_Large"] = made({"": FILES}, source="the text")
    assert [row.reason for row in run_import([problem], tmp_path / "tasks", How())] == [None]
    assert len(asked) == 2
    assert (tmp_path / "tasks" / "level1_1_Large" / "problem.py").read_text() == "the text"


@pytest.mark.parametrize("stage", ["tasks.extract.extracting", "tasks.constraints"])
def test_memory_that_validation_lacks_is_no_fault_of_the_capture(suite, tmp_path, monkeypatch, stage):
    suite("1_Large", HEAD + SCALED)

    def out_of_memory(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    monkeypatch.setattr(f"passagent.{stage}.load_module", lambda *_: out_of_memory)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"does not run: OutOfMemoryError") as refused:
        make_tasks(payload_of(suite))
    assert refused.value.reason == "memory"


def most_live_bytes(work):
    """What the tensors hold together at most while `work` runs, and what it returns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = work()
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    events.sort(key=lambda one: one.start_ns())
    return max(itertools.accumulate(one.nbytes() for one in events)), result


def on_host(value):
    """A copy in memory that is not torch's own: it is not counted among a device's."""
    return torch.from_numpy(value.detach().numpy().copy())


@pytest.mark.parametrize(
    ("body", "most"),
    [("return x / (x * x).mean(1, keepdim=True).sqrt()", 4.2), ("return x * torch.sigmoid(x)", 5.2)],
)
def test_few_tensors_of_a_large_input_are_on_the_device_at_a_time(suite, tmp_path, monkeypatch, body, most):
    monkeypatch.setattr("passagent.tasks.inputs.PART", 1 << 14)  # they are drawn on the host
    monkeypatch.setattr(constraints, "LARGE", 1 << 20)
    monkeypatch.setattr(constraints, "CROWDED", ("cpu",))
    monkeypatch.setattr(constraints, "in_host_memory", on_host)
    suite("1_Large", plain(body, "return [torch.rand(512, 4096)]"))
    monkeypatch.chdir(tmp_path)
    live, answer = most_live_bytes(lambda: make_tasks(payload_of(suite)))
    assert len(answer["tasks"]) == 1 and answer["is_exact"]
    assert 3 <= live / (512 * 4096 * 4) <= most


@pytest.mark.parametrize(
    "task",
    [
        {"": {"../g": {"model.py": ""}}},
        {"/x": FILES},
        {"": {"g": {"../../model.py": ""}}},
        {"": {"g": {"sitecustomize.py": ""}}},
    ],
)
def test_a_process_cannot_have_other_files_written(suite, tmp_path, monkeypatch, task):
    suite("1_First", HEAD)
    answering(monkeypatch, {"level1_1_First": made(task)})
    [row] = run_import(find_problems(str(suite.root), [1]), tmp_path / "out" / "tasks", How())
    assert (row.reason, row.tasks) == ("fails", [])
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["tasks", RECORD]


@pytest.mark.long
def test_a_problem_that_runs_for_ever_ends_in_time(suite, tmp_path):
    suite("1_Endless", plain("while True: pass"))
    found = find_problems(str(suite.root), [1])
    [row] = run_import(found, tmp_path / "tasks", How(timeout_s=3.0))
    assert (row.reason, row.message) == ("timeout", "takes more than 3 s")


@pytest.mark.long
def test_each_problem_becomes_a_task_or_a_reason(suite, tmp_path):
    broken = "import torch\nx = x.tolist() and x if False else x\nreturn x + int(x.sum() > 3)"
    cases = {
        "1_Scaled": (HEAD + SCALED, None),
        "2_Missing": ("import no_such_package\n", "missing_package"),
        "3_Random": (plain("return x + torch.rand(4, 8)"), "random"),
        "4_NoTensor": (plain("return 3"), "no_tensor"),
        "5_NoModel": (HEAD + "def get_inputs():\n    return []\n", "no_model"),
        "7_Memory": (plain("return x @ torch.zeros(8, 1 << 40)"), "memory"),
        "8_Fails": (plain("return x.view(3, 3)"), "fails"),
        "9_Exits": (HEAD + "import os\nos._exit(0)\n", "fails"),
        "10_Breaks": (plain(broken.replace("\n", "\n        ")), None),
        "11_Snoops": (HEAD + "open('/etc/shadow').read()\n", "fails"),
        "12_Constant": (plain("return x * 0"), None),
    }
    for name, (text, _) in cases.items():
        suite(name, text)
    how = How(most_bytes=1 << 20)
    rows = {
        row.name.removeprefix("level1_"): row
        for row in run_import(find_problems(str(suite.root), [1]), tmp_path / "tasks", how)
    }
    assert {name: row.reason for name, row in rows.items()} == {name: why for name, (_, why) in cases.items()}
    assert "no_such_package" in rows["2_Missing"].message
    assert rows["8_Fails"].message.startswith("8_Fails.py:7: RuntimeError: shape")
    assert rows["12_Constant"].weak == ["constant output"]
    assert len(rows["10_Breaks"].tasks) > 1
    task = load_task(tmp_path / "tasks" / "level1_1_Scaled")
    assert [one.name for one in task.subgraphs] == ["level1_1_Scaled"]
    facts = json.loads((task.subgraphs[0].path / "graph_net.json").read_text())
    assert facts["origin"]["suite"] == "kernelbench" and rows["1_Scaled"].is_exact
