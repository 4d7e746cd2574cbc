"""Reading tasks: the layouts people have, and one clear line for each way a task can be broken."""

import dataclasses
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from passagent.errors import TaskError, UsageError
from passagent.tasks import TensorMeta, load_task
from passagent.tasks.meta import DTYPES, meta_source, read_meta
from passagent.tasks.tasklist import find_tasks

EXAMPLES = Path(__file__).parent.parent / "examples" / "tasks"
LONG = "graphs/hf_subgraphs_v2/fusible_subgraphs/{}/{}/samples/timm/resnet/_decomposed/resnet_start3_end7_0"

ONE_INPUT = """import torch


class GraphModule(torch.nn.Module):
    def forward(self, in_0):
        return (in_0 + 1,)
"""


@pytest.fixture
def subgraph(tmp_path):
    """A copy of one real subgraph directory."""
    task = load_task(EXAMPLES / "masked_mean_pool")
    return Path(shutil.copytree(task.subgraphs[0].path, tmp_path / "subgraph"))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_reads_a_real_task():
    task = load_task(EXAMPLES / "masked_mean_pool")
    assert task.name == "masked_mean_pool"
    assert task.operators == ("to", "mul", "sum", "sum", "clamp", "truediv", "cat")
    assert [subgraph.dtype for subgraph in task.subgraphs] == ["float32", "float16", "bfloat16"]
    mask, hidden = task.subgraphs[0].inputs
    assert (mask.name, mask.shape, mask.dtype) == ("in_0", (1, 10, 1024), "int64")
    assert (mask.min_val, mask.max_val) == (0, 1)
    assert (hidden.dtype, hidden.device, hidden.data) == ("float32", "cuda:0", None)
    assert len(task.subgraphs[0].graph_hash) == 64


def test_a_task_with_recorded_values_can_be_a_key(subgraph):
    [mask, _] = load_task(subgraph).subgraphs[0].inputs
    kept = dataclasses.replace(mask, shape=(2, 2), data=[[0, 1], [1, 0]])
    (subgraph / "weight_meta.py").write_text(meta_source([kept]))
    (subgraph / "model.py").write_text(ONE_INPUT)
    task, again = load_task(subgraph), load_task(subgraph)
    assert task == again
    assert hash(task) == hash(again)
    assert task.subgraphs[0].inputs[0].data == ((0, 1), (1, 0))


def test_passnets_own_layout(tmp_path, subgraph):
    """Long paths, `graphs` a symbolic link, blank lines, CRLF, the same last part in every path."""
    store = tmp_path / "store"
    lines = [LONG.format(dtype, k) for dtype in ("float16", "float32") for k in (0, 9)]
    for line in lines:
        shutil.copytree(subgraph, store / line)
    task_dir = tmp_path / "sample"
    task_dir.mkdir()
    (task_dir / "graphs").symlink_to(store / "graphs")
    (task_dir / "graph_list.txt").write_bytes(("\r\n\r\n".join(lines) + "\r\n\r\n").encode())
    (task_dir / "sample_uids.txt").write_text("0" * 32)
    (task_dir / "entry.sh").symlink_to("nowhere.sh")
    task = load_task(task_dir)
    assert len(task.subgraphs) == 4
    assert len({s.name for s in task.subgraphs}) == 4
    assert task.subgraphs[0].name.startswith("float16/0/")


def test_names_of_subgraphs_differ_and_one_alone_is_a_task(tmp_path, subgraph):
    assert [s.name for s in load_task(subgraph).subgraphs] == ["subgraph"]
    (tmp_path / "graph_list.txt").write_text("subgraph\nsubgraph\n")
    assert [s.name for s in load_task(tmp_path).subgraphs] == ["subgraph", "subgraph#2"]


def test_key_is_of_the_content(tmp_path):
    original = load_task(EXAMPLES / "quick_gelu")
    copy = Path(shutil.copytree(EXAMPLES / "quick_gelu", tmp_path / "other"))
    (copy / "pass_dir").mkdir(exist_ok=True)
    (copy / "pass_dir" / "p.py").write_text("x = 1\n")
    assert load_task(copy).key == original.key
    edit(load_task(copy).subgraphs[1].path / "model.py", "1.702", "1.703")
    assert load_task(copy).key != original.key


def test_minimal_old_metadata(subgraph):
    """No optional field, no annotations of devices, an annotated forward, inputs in input_meta.py."""
    (subgraph / "model.py").write_text(
        "import torch\n\nclass GraphModule(torch.nn.Module):\n"
        "    def forward(self, s0: torch.SymInt, L_x_: torch.Tensor):\n        return (L_x_.view(s0, -1),)\n"
    )
    (subgraph / "weight_meta.py").write_text("")
    (subgraph / "input_meta.py").write_text(
        'class A:\n    name = "L_x_"\n    shape = (2, 3)\n    dtype = torch.float16\n    mean = nan\n'
        'class B:\n    name = "s0"\n    shape = []\n    dtype = "torch.int64"\n    data = 2\n'
        'class C:\n    name = "unused"\n    shape = [1]\n    dtype = "torch.half"\n    min_val = -inf\n'
        '    max_val = float("inf")\n'
    )
    for file in ("graph_net.json", "graph_hash.txt", "input_tensor_constraints.py"):
        (subgraph / file).unlink()
    (read,) = load_task(subgraph).subgraphs
    size, x = read.inputs
    assert (size.data, size.shape, size.original_name) == (2, (), "s0")
    assert (x.shape, x.dtype) == ((2, 3), "float16")
    assert math.isnan(x.mean)
    assert read.graph_hash == ""
    extra = read_meta(subgraph / "input_meta.py", (subgraph / "input_meta.py").read_text())["unused"]
    assert (extra.dtype, extra.min_val, extra.max_val) == ("float16", -math.inf, math.inf)


def test_nothing_is_executed(subgraph):
    for file in ("model.py", "weight_meta.py"):
        path = subgraph / file
        path.write_text(path.read_text() + "\nraise SystemExit('executed')\n")
    assert load_task(subgraph).subgraphs[0].inputs


def test_reading_does_not_import_torch():
    code = f"import sys; from passagent.tasks import load_task; load_task({str(EXAMPLES / 'quick_gelu')!r})"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_and_empty_paths(tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        load_task(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"holds neither graph_list\.txt nor model\.py"):
        load_task(tmp_path)
    for text, message in (("\n\n", "lists no subgraph"), ("\n\ngone\n", r"\.txt:3: gone: no such directory")):
        (tmp_path / "graph_list.txt").write_text(text)
        with pytest.raises(TaskError, match=message):
            load_task(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("model.py", "tmp_1 = in_1 * tmp_0", "tmp_1 = in_1 * (tmp_0", r"model\.py:7: does not parse"),
        ("model.py", "class GraphModule", "class Other", r"model\.py: defines no class GraphModule"),
        ("model.py", "def forward", "def backward", r"model\.py:3: class GraphModule has no method forward"),
        ("model.py", "in_0, in_1)", "in_0, in_7)", r"model\.py:5: forward's 'in_7' has no entry"),
        ("model.py", "in_0, in_1)", "*inputs)", r"model\.py:5: forward must name its inputs"),
        ("weight_meta.py", "class ", "class 1", r"weight_meta\.py:1: does not parse"),
        ("weight_meta.py", "shape =", "form =", r"weight_meta\.py:1: .*has no 'shape'"),
        ("weight_meta.py", "[1, 10, 1024]", "[1, -10, 1024]", r"weight_meta\.py:4: .*'shape' must be"),
        ("weight_meta.py", "torch.int64", "torch.int65", r"weight_meta\.py:5: .*unknown dtype 'torch.int65'"),
        ("weight_meta.py", "min_val = 0", "min_val = open('x')", r"meta\.py:9: 'min_val' is not a literal"),
        ("weight_meta.py", "min_val = 0", "min_val = 2", r"min_val 2 is over max_val 1"),
        (
            "weight_meta.py",
            "min_val = 0",
            "data = [1, 2, 3]",
            r"'data' has 3 values, shape .* asks for 10240",
        ),
        ("weight_meta.py", '"in_1"', '"in_0"', r"weight_meta\.py:\d+: a second entry for 'in_0'"),
    ],
)
def test_broken_files_are_named_in_one_line(subgraph, file, old, new, message):
    edit(subgraph / file, old, new)
    with pytest.raises(TaskError, match=message) as caught:
        load_task(subgraph)
    assert "\n" not in str(caught.value)


def test_tasks_directories_globs_and_lists(tmp_path, monkeypatch):
    for name in ("samples/a/1", "samples/a/2", "samples/b/3"):
        tiny.write_task(tmp_path / name)
    (tmp_path / "samples/README.md").write_text("no task")
    (tmp_path / "sample_lists/eval").mkdir(parents=True)
    listing = tmp_path / "sample_lists/eval/few.txt"
    listing.write_text("# two of them\n\nsamples/b/3\n  samples/a/1  \nsamples/b/3\n")
    table = tmp_path / "sample_lists/all.csv"
    table.write_text("sample_path\nsamples/a/2\nsamples/a/1\n")
    monkeypatch.chdir(tmp_path)

    def names(*words: str, root: str | None = None) -> list[str]:
        return [path.name for path in find_tasks(words, root)]

    assert names("samples/a/2") == ["2"]
    assert (
        names("samples")
        == names("samples/*")
        == names("samples/*/*")
        == names("**/samples")
        == ["1", "2", "3"]
    )
    assert names("samples/b", "samples") == ["3", "1", "2"]
    assert names("samples/a/1/graphs/g0_float32") == ["g0_float32"]
    assert names("sample_lists/eval/few.txt") == names("sample_lists/eval/*.txt") == ["3", "1"]  # from here
    assert names("sample_lists/all.csv") == ["2", "1"]
    monkeypatch.chdir("/")
    assert names(str(listing), root=str(tmp_path)) == ["3", "1"]
    (tmp_path / "here.txt").write_text(f"samples/a/2\n{tmp_path}/samples/a/1\n")
    assert names(str(tmp_path / "here.txt")) == ["2", "1"]  # from the list's own directory; absolute


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("task1\n\ntask9\n", "list.txt:3: task9: no such directory"),
        ("# none\n", "list.txt: lists no task"),
        ("empty\n", "list.txt:1: empty: holds neither graph_list.txt nor model.py"),
        (b"\xff\xfe", "list.txt: not a readable sample list: is not UTF-8 text"),
    ],
)
def test_mistakes_in_a_list(tmp_path, content, told):
    tiny.write_task(tmp_path / "task1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as raised:
        find_tasks([str(tmp_path / "list.txt")])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_links_are_followed_once(tmp_path):
    tiny.write_task(tmp_path / "real/1")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/linked").symlink_to(tmp_path / "real")
    (tmp_path / "samples/round").symlink_to(tmp_path / "samples")
    assert [path.name for path in find_tasks([str(tmp_path / "samples"), str(tmp_path / "real/1")])] == ["1"]


numbers = st.none() | st.integers(-5, 5) | st.floats(width=32)
metas = st.builds(
    TensorMeta,
    name=st.from_regex(r"in_[0-9]{1,2}", fullmatch=True),
    original_name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,20}", fullmatch=True),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtype=st.sampled_from(sorted(DTYPES)),
    device=st.sampled_from(["cuda:0", "cpu"]),
    mean=numbers,
    std=numbers,
    min_val=st.none() | st.integers(-9, 0),
    max_val=st.none() | st.floats(0, math.inf),
)


@given(st.lists(metas, max_size=4, unique_by=lambda meta: meta.name), st.data())
def test_metadata_survives_writing(written, data):
    filled = []
    for meta in written:
        values = data.draw(
            st.none() | st.lists(numbers.filter(bool), min_size=meta.numel, max_size=meta.numel)
        )
        filled.append(TensorMeta(**{**vars(meta), "data": values}))
    read = read_meta(Path("weight_meta.py"), meta_source(filled))
    assert repr(list(read.values())) == repr(filled)
