"""The parts of the dataset pipeline: folding, plateaus, buckets, groups, the partition, generalisation."""

import contextlib
import random
from collections import defaultdict

import numpy as np
import pytest
from graphs_to_fold import write_graph

from passagent.data.pipeline import folding
from passagent.data.pipeline.assembling import find_samples, validation
from passagent.data.pipeline.cutting import cut_ranges, fusible_ranges, kernel_counts, validate_sample
from passagent.data.pipeline.generalisation import generalise, instance
from passagent.data.pipeline.grouping import (
    STRIDE,
    Bucketed,
    Member,
    dimension_bucket,
    groups,
    partition,
    select,
    shared,
)
from passagent.errors import UsageError
from passagent.tasks.suites.forked_jobs import Refused


def the_best(tokens, window):
    """The winner's score, length and first place, by counting all windows."""
    places = defaultdict(list)
    for length in range(1, min(window, len(tokens)) + 1):
        for start in range(len(tokens) - length + 1):
            places[tuple(tokens[start : start + length])].append(start)
    return max(((len(key) - 1) * (len(own) - 1), -len(key), -own[0]) for key, own in places.items())


def test_the_winner_of_a_fold_is_that_of_counting_all_windows():
    rng = random.Random(1)
    for _ in range(150):
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(1, 50))]
        window = rng.choice([3, 5, 8, 64])
        found = folding.most_telling(np.array(tokens), window)
        got = ((found.length - 1) * (len(found.starts) - 1), -found.length, -found.starts[0])
        best = the_best(tokens, window)
        assert got == best or (got[0], best[0]) == (0, 0)


def test_a_row_of_layers_is_folded_into_layers():
    layer = [f"op{i}" for i in range(22)]
    sequence = ["embedding", "add", *layer * 12, "pool"]
    folded = folding.fold([sequence])
    assert folded.names == sorted(set(sequence), key=repr)
    first = folded.folds[0]
    assert ([folded.names[token] for token in first.body], first.times) == (layer, 12)
    assert folding.ranges(folded) == [[(2 + 22 * i, 24 + 22 * i) for i in range(12)]]
    # GraphNet's own rule takes the longest window, which is too long for a subgraph
    published = folding.fold([sequence], whole_periods=False)
    assert published.folds[0].size == folding.WINDOW


def test_the_basic_block_is_found_in_two_resnets():
    """In resnet18 alone two blocks at once repeat more of it: 27 operators twice, and the block 5 times."""
    half = ["conv2d", "batch_norm"]
    block = [*half, "relu", *half, "iadd", "relu"]

    def resnet(*stages):
        found = [*half, "relu", "max_pool2d"]
        for number, blocks in enumerate(stages):
            wider = [*half, "relu", *half, *half, "iadd", "relu"] if number else block
            found += wider + block * (blocks - 1)
        return [*found, "adaptive_avg_pool2d", "flatten", "linear"]

    alone = folding.fold([resnet(2, 2, 2, 2)])
    assert [(one.size, one.times) for one in alone.folds] == [(27, 2), (3, 3)]
    both = folding.fold([resnet(2, 2, 2, 2), resnet(3, 4, 6, 3)])
    first = both.folds[0]
    names = [both.names[token] for token in first.body]
    assert first.times == 22  # of 24: it begins within a block, and the last ones have no half behind them
    assert names in [block[i:] + block[:i] for i in range(len(block))]


def test_folds_do_not_cross_sequences_and_rows_between_them_are_ranges():
    folded = folding.fold([["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"], ["e", "a"]])
    assert folding.ranges(folded) == [[(0, 5)], [(0, 5)], []]
    folded = folding.fold([[*"pqrsabcdef", *"abcdef"], [*"abc"]])
    assert folding.ranges(folded)[0] == [(0, 4), (4, 10), (10, 16)]
    assert folding.fold([]).folds == folding.fold([["a"]]).folds == []


def test_equal_counts_are_found_by_few_schedules():
    counts = [1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    asked = []
    assert kernel_counts(16, lambda prefix: asked.append(prefix) or counts[prefix - 1]) == counts
    assert len(asked) == len(set(asked)) < 16
    assert kernel_counts(0, counts.__getitem__) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 1, 1, 2, 2, 3], [(0, 3), (3, 5)]),
        ([1, 2, 3], []),
        ([1, 2, 1, 1], [(0, 4)]),
        ([2, 3, 3, 2, 4, 4], [(0, 4), (4, 6)]),
        ([1, 1, 2, 1, 2, 2], [(0, 4), (4, 6)]),
        ([0, 0, 1], [(0, 2)]),
        ([3, 2, 1], [(0, 3)]),
    ],
)
def test_plateaus_are_those_of_graphnet(counts, expected):
    """The expected ranges are what GraphNet's own analyser gives for the counts."""
    assert fusible_ranges(counts) == expected


def test_dimensions_are_in_graphnets_buckets():
    sizes = [-1, 0, 1, 15, 16, 255, 256, 4095, 4096, 65536]
    assert [dimension_bucket(size) for size in sizes] == [-1, -1, 0, 0, 1, 1, 2, 2, 3, 4]


def test_each_group_is_of_one_sequence_and_follows_its_rule():
    rng = random.Random(2)
    given = [
        Bucketed(i, rng.choice(["fusible", "single"]), (rng.choice("ab"),),
                 ((rng.choice([0, 1]),),), (rng.choice(["f", "h", "b", "i"]),))
        for i in range(400)
    ]  # fmt: skip
    found = groups(given)
    for group in found:
        own = group.members
        assert len({(one.kind, one.operators) for one in own}) == 1
        if group.rule == 1:
            assert len(own) == 1
        if group.rule == 2:
            assert len({one.shapes for one in own}) == len(own)
        if group.rule == 4:
            assert len({(one.shapes, one.dtypes) for one in own}) == len(own) <= 6
    taken = [one.uid for group in found for one in group.members]
    assert len(taken) == len(set(taken)) < len(given)
    buckets = {(one.kind, one.operators, one.shapes) for one in given}
    assert sum(len(group.members) for group in found if group.rule == 2) == len(buckets)
    assert sum(group.rule == 1 for group in found) <= len(given) / STRIDE + len(buckets)


def test_evaluation_takes_rare_steps_and_training_shares_nothing_with_it():
    sequences = sorted({("a", "b"), ("a", "b", "a"), ("a", "c", "d"), ("b", "a", "b"), ("a",)})
    assert select(sequences, 1) == [("a", "c", "d")]
    assert select(sequences, 9) == sequences and select(sequences, 0) == []
    tasks = [
        Member(f"{'_'.join(one)}{i}", "fusible", one, frozenset({f"{one}{i}"}), i)
        for one in sequences
        for i in (1, 2)
    ]
    tasks.append(Member("whole", "classical", ("z",), frozenset({"('a', 'c', 'd')2"}), 1))
    parts = partition(tasks, {"fusible": 200, "classical": 200})
    assert parts.evaluation == ["a_c_d2"]
    assert parts.left_out == ["a_c_d1", "whole"]
    assert len(parts.train) == 8
    by_name = {task.name: task for task in tasks}
    assert shared([by_name[name] for name in parts.train], [by_name["a_c_d2"]]) == []
    assert shared([by_name["whole"]], [by_name["a_c_d2"]]) == ["whole has a subgraph of a_c_d2"]
    assert shared([by_name["a_c_d1"]], [by_name["a_c_d2"]]) == ["a_c_d1 has the operator sequence of a_c_d2"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    place = tmp_path_factory.mktemp("samples")
    with contextlib.chdir(place):
        return validate_sample(validation(write_graph(place / "layers", 3), "cpu"))


def test_a_valid_sample_becomes_a_graph_for_its_recorded_sizes(graph):
    assert graph["operators"][:6] == ["Tensor.view", "linear", "gelu", "mul", "add", "layer_norm"]
    assert graph["nodes"][7]["args"] == {"tuple": [{"node": "in_0"}, 1, 8, 16]}
    assert {meta["device"] for meta in graph["inputs"]} == {"cpu"}


def test_a_subgraph_takes_other_sizes_that_hold_and_other_dtypes(graph):
    payload = {key: graph[key] for key in ("nodes", "inputs")} | {"ranges": [["classical", 0, 6]]}
    [record] = cut_ranges(payload)["records"]
    [inner] = cut_ranges({**record, "range": [7, 13], "ranges": [["fusible", 2, 4]]})["records"]
    assert inner["range"] == [9, 11] and inner["operators"] == ["gelu", "mul"]  # numbers of the full graph's
    found = generalise({**record, "shapes": 3, "dtypes": ["float32", "float16"]})
    assert found["symbols"] == ["b", "s8"]  # 16 is a size of weights
    sizes = [(one["sizes"]["b"], one["sizes"]["s8"]) for one in found["instances"]]
    assert sizes == [(1, 8), (1, 8), (1, 16), (1, 16), (4, 16), (4, 16)]
    last = instance(found["template"], {"b": 4, "s8": 16}, "float16")
    assert "view" in str(last[0]) and "(%in_0, 4, 16, 16)" in str(last[0])
    assert last[1][0].shape == (4, 16, 16) and {meta.dtype for meta in last[1]} == {"float16"}
    assert len({one["hash"]["instance"] for one in found["instances"]}) == 6
    assert len({one["hash"]["structure"] for one in found["instances"]}) == 2  # a view to 1 is kept


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("        x{j} = torch.log(x{i} - 100)\n", "nan"),
        ("        x{j} = torch.dropout(x{i}, 0.5, True)\n", "random"),
        ("        x{j} = ((\n", "unreadable"),
    ],
)
def test_a_bad_sample_is_refused_with_a_word(tmp_path, monkeypatch, body, reason):
    monkeypatch.chdir(tmp_path)
    path = write_graph(tmp_path / "bad", 1, body=body)
    with pytest.raises(Refused) as refused:
        validate_sample(validation(path, "cpu"))
    assert refused.value.reason == reason and refused.value.message


def test_samples_are_found_below_directories(tmp_path):
    write_graph(tmp_path / "suite" / "one", 1)
    assert list(find_samples([str(tmp_path), str(tmp_path / "suite")])) == ["suite/one"]
    with pytest.raises(UsageError, match="no such directory"):
        find_samples([str(tmp_path / "none")])
