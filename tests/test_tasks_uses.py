"""How far inputs go beyond what was recorded: as far as the graph allows, whatever they are called."""

import pytest
import torch
from cases import BF16, F32, I64, TASKS, TaskText, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator.correctness.settled import first_beyond
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.reference import keeping
from passagent.evaluator.runner.fresh import Draw, Rotation, window_of
from passagent.evaluator.score import BEYOND_SET
from passagent.tasks.capture import capture
from passagent.tasks.inputs import BEYOND, draw_one, make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.uses import as_recorded, narrower, wider

ZERO, ONE = ["min_val = 0", "max_val = 0"], ["min_val = 1", "max_val = 1"]
TABLE = ([10, 4], F32)
NAMES = {
    "an index of a table": (
        "return (torch.nn.functional.embedding(in_0[slice(None, None, None), slice(None, 3, None)], in_1),)",
        [([2, 5], I64, ZERO), TABLE],
        {0: (0, 9, "index")},
    ),
    "of the smaller of two tables": (
        "tmp_0 = in_0.view(-1)\nreturn (torch.nn.functional.embedding(tmp_0, in_1), "
        "torch.nn.functional.embedding(in_0, in_2))",
        [([2, 5], I64, ["min_val = 2", "max_val = 5"]), TABLE, ([7, 4], F32)],
        {0: (0, 6, "index")},
    ),
    "chosen along a dimension": (
        "return (torch.index_select(in_1, 1, in_0), torch.gather(in_2, 0, in_0.view(1, 3)))",
        [([3], I64, ["data = [0, 1, 2]"]), ([3, 9], F32), ([6, 3], F32)],
        {0: (0, 5, "index")},
    ),
    "from the end as well": ("return (in_1[in_0],)", [([2, 5], I64, ZERO), TABLE], {0: (-10, 9, "index")}),
    "from the end for one of two tables": (
        "return (in_1[in_0], torch.nn.functional.embedding(in_0, in_1))",
        [([2, 5], I64, ZERO), TABLE],
        {0: (0, 9, "index")},
    ),
    "from the end nowhere else": (
        "tmp_0 = in_0 + 2\nreturn (in_1[in_0], torch.nn.functional.embedding(tmp_0, in_2))",
        [([2, 5], I64, ZERO), TABLE, ([12, 4], F32)],
        {0: (0, 9, "index")},
    ),
    "a difference of two indices": (
        "tmp_0 = in_0[slice(None, None, None), 1]\ntmp_1 = in_0[slice(None, None, None), 0]\n"
        "tmp_2 = tmp_0 - tmp_1\nreturn (torch.nn.functional.embedding(tmp_2, in_1), "
        "torch.nn.functional.embedding(tmp_0, in_1))",
        [([8, 2], I64, ZERO), TABLE],
        {0: (0, 9, "rising")},
    ),
    "the sum of two indices": (
        "tmp_0 = in_0 + in_2\nreturn (torch.nn.functional.embedding(tmp_0, in_1),)",
        [([8], I64, ZERO), ([2, 4], F32), ([8], I64, ZERO)],
        {},
    ),
    "a mask": (
        "tmp_0 = in_0.to(torch.float32)\ntmp_1 = 1.0 - tmp_0\nreturn (in_1 + tmp_1 * -10000.0,)",
        [([2, 6], I64, ONE), ([2, 6], F32)],
        {0: (0, 1, "mask")},
    ),
    "a mask of one column": (
        "return (in_1.masked_fill(in_0 == 0, 0.0),)",
        [([6, 1], I64, ["data = [1, 1, 1, 1, 1, 1]"]), ([6, 3], F32)],
        {0: (0, 1, "any")},
    ),
    "a number that is multiplied": (
        "return (in_0 * in_1,)",
        [([], I64, ["data = [65536]"]), ([5], I64)],
        {0: (0, 65536, "any"), 1: (0, 1, "any")},
    ),
    "a size": (
        "tmp_0 = in_0.item()\nreturn (torch.arange(tmp_0) + in_1,)",
        [([], I64, ["data = [4]"]), ([4], I64)],
        {1: (0, 1, "any")},
    ),
    "the end of a range": (
        "return (torch.arange(start=0, end=in_0) * in_1,)",
        [([], I64, ["data = [4]"]), ([4], I64)],
        {1: (0, 1, "any")},
    ),
    "what nobody knows": ("return (torch.repeat_interleave(in_1, in_0),)", [([3], I64, ONE), ([3], F32)], {}),
    "what varies already": (
        "return (in_0 * 2,)",
        [([6], I64, ["min_val = 3", "max_val = 7"])],
        {0: (3, 7, "any")},
    ),
}


def subgraph_of(root, body, inputs):
    TASKS["of the test"] = TaskText(body, [inputs])
    try:
        return write_task(root / "task", "of the test").subgraphs[0]
    finally:
        del TASKS["of the test"]


def graph_of(subgraph):
    return capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0))


@pytest.mark.parametrize("name", NAMES)
def test_integers_vary_within_what_the_graph_allows(tmp_path, name):
    body, inputs, expected = NAMES[name]
    subgraph = subgraph_of(tmp_path, body, inputs)
    graph = graph_of(subgraph)
    found = wider(subgraph, graph.graph_module, graph.order)
    changed = {
        i: (meta.min_val, meta.max_val, meta.role)
        for i, (meta, was) in enumerate(zip(found.subgraph.inputs, subgraph.inputs, strict=True))
        if meta != was
    }
    assert changed == expected
    # Every window of every set runs in eager: no index of any is out of range.
    rotation, draw = Rotation.of(found.subgraph), Draw(Rotation.of(found.subgraph))
    for variant in (1, 2, 4, BEYOND):
        values = make_inputs(found.subgraph, "cpu", 7, variant)
        reservoirs = [torch.cat(rotation.reservoir(i, v, 8, variant)) for i, v in enumerate(values)]
        for windows in [rotation.first(), *(draw.next() for _ in range(20))]:
            seen = [
                window_of(r, w, v.numel()).reshape(v.shape)
                for r, w, v in zip(reservoirs, windows, values, strict=True)
            ]
            graph.graph_module(*[seen[i] for i in graph.order])
    for i in expected:
        drawn = torch.cat([draw_one(found.subgraph.inputs[i], seed, 1).reshape(-1) for seed in range(40)])
        assert len(drawn.unique()) > 1
        assert {int(drawn.min()), int(drawn.max())} <= set(range(expected[i][0], expected[i][1] + 1))
    kept = {line.partition(":")[0] for line in found.kept}
    constant = {f"in_{i}" for i, one in enumerate(inputs) if one[1] == I64 and one[2:] and i not in expected}
    assert kept == (constant if name != "what varies already" else set())


def test_a_variance_is_known_by_its_use(tmp_path):
    body = "return (torch.nn.functional.batch_norm(in_0, in_1, in_2.view(3), in_3, in_4, False, 0.1, 1e-05),)"
    small = ([3], F32, ["mean = 0.0", "std = 1.0"])
    subgraph = subgraph_of(tmp_path, body, [([2, 3, 4], F32), small, small, small, small])
    graph = graph_of(subgraph)
    metas = wider(subgraph, graph.graph_module, graph.order).subgraph.inputs
    assert [meta.role for meta in metas] == ["", "", "positive", "", ""]
    assert all(float(draw_one(metas[2], seed, BEYOND).min()) > 0 for seed in range(20))


def test_narrowing_begins_with_what_has_limits_and_ends(tmp_path):
    inputs = [([4], F32)] * 10 + [([4], F32, ["mean = 1.0", "std = 1.0", "min_val = 0.0"])]
    body = "return (" + " + ".join(f"in_{i}" for i in range(11)) + ",)"
    subgraph = subgraph_of(tmp_path, body, inputs)
    graph = graph_of(subgraph)
    values, order = wider(subgraph, graph.graph_module, graph.order), []
    while (now := narrower(values)).subgraph != values.subgraph:
        values = now
        order.append([line.partition(":")[0] for line in values.kept])
    assert order[0] == ["in_10"]
    assert len(order) == 9 and len(order[-1]) == 11
    assert values.subgraph == as_recorded(subgraph)


@pytest.fixture(scope="module")
def referee(forks):
    with Referee(EvaluatorConfig(device="cpu"), forks) as one:
        yield one


FALLS_BACK = {
    "a root": (
        "return (torch.sqrt(in_0) + in_1,)",
        # so many elements, here and below, that chance decides nothing
        [([64, 64], F32, ["mean = 2.0", "std = 0.5", "min_val = 0.0"]), ([64, 64], F32)],
        ["in_0: other values leave results that are not finite"],
    ),
    "floats that become indices": (
        "return (torch.nn.functional.embedding(in_0.long(), in_1),)",
        [([8, 8], F32, ["mean = 2.0", "std = 0.5", "min_val = 0.0", "max_val = 3.0"]), ([4, 999], F32)],
        ["every input: eager fails on other values", "no special values: eager fails on them"],
    ),
    "nothing": ("return (torch.relu(in_0) * in_1,)", [([64, 64], BF16), ([64, 64], BF16)], []),
}


@pytest.mark.parametrize("name", FALLS_BACK)
def test_where_eager_does_not_stand_other_values_inputs_stay_as_recorded(tmp_path, referee, name):
    body, inputs, told = FALLS_BACK[name]
    made = referee._baseline.reference(subgraph_of(tmp_path, body, inputs), "direct")
    assert made.narrowed == told
    beyond, first = made.expected[BEYOND_SET].eager[0], made.rotation.first()
    assert bool(beyond.isfinite().all())
    second = made.values(1, BEYOND_SET, first).float()
    assert (abs(float(second.mean())) > 0.25) == (name != "floats that become indices")


def test_a_large_subgraph_has_a_set_beyond_the_recorded(tmp_path, referee, monkeypatch):
    """It is compared on seven sets, the fifth of which a pass that leaves out the relu does not meet."""
    monkeypatch.setattr(keeping, "SMALL", 100)
    inputs = [([16, 16], F32, ["mean = 0.5", "std = 0.5", "min_val = 0.0"]), ([16, 16], F32)]
    made = referee._baseline.reference(
        subgraph_of(tmp_path, "return (torch.relu(in_0) + in_1,)", inputs), "direct"
    )
    assert len(made.expected) == len(made.described) == BEYOND_SET + 3
    assert made.expected[BEYOND_SET].float64 is None
    first = made.rotation.first()
    without = sum(made.values(i, BEYOND_SET, first) for i in (0, 1))
    expected = referee._baseline.look_closer(made, made.expected[BEYOND_SET], BEYOND_SET)
    assert first_beyond(0, expected.eager[0], expected.room[0], without)
