"""The dataset pipeline on GraphNet's samples, and its rules against GraphNet's own functions.

    python benchmarks/dataset_pipeline.py GRAPHNET --work PLACE --count 400 --jobs 16 --budget 3600

GRAPHNET is a checkout of PaddlePaddle/GraphNet. Its functions are executed from there, nothing of it is kept.
A stratified choice of torch samples, by their directory, is validated, `--jobs` at a time, in an order of
which any first part is stratified, too. No sample is begun when the budget, s, is spent; the same command
goes on. A sample may take `--limit` seconds and `--memory` GiB. `--choice FILE` keeps the choice,
for a part of a checkout that holds only what was chosen. Of what is accepted:

- folding: the same ranges as GraphNet's parser by its own rule; the layers found by whole periods
- buckets, plateaus, selection: equal to GraphNet's functions, on all sizes met and on random input
- hash: equal under other names, another format and another order; different for each of 200 mutations of one
  attribute
- `--build N`: the whole pipeline on the first N accepted samples of at most `--operators` operators

Raw results go to benchmarks/results/dataset-pipeline-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import resource
import sys
import time
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import summary

from passagent.data.pipeline import assembling, folding
from passagent.data.pipeline.assembling import Done, find_samples, key_of, validation
from passagent.data.pipeline.cutting import fusible_ranges, metas_of, validate_sample
from passagent.data.pipeline.grouping import dimension_bucket, select
from passagent.evaluator.captures import graph_of
from passagent.store.outputs import RowFile
from passagent.tasks.extract.sample import model_text
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph
from passagent.tasks.suites.forked_jobs import Jobs

SEED = 0
FIRST = ("transformers-auto-model/bert-base-uncased", "torchvision/resnet18", "torchvision/resnet34")
"""Samples that folding is asked about: each alone, and both resnets, which have one basic block, together."""
MUTATIONS = 200


def stratified(samples: dict[str, Path], count: int, by_size: bool) -> list[str]:
    """So many samples, of each directory in its share; any first part of them is stratified, too.

    `by_size`: of the chosen ones of a directory those with the shortest text first.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name, path in sorted(samples.items()):
        groups[path.parts[path.parts.index("samples") + 1]].append(name)
    rng, placed = random.Random(SEED), []
    for names in groups.values():
        rng.shuffle(names)
        share = max(1, round(count * len(names) / len(samples)))
        own = names[:share]
        if by_size:
            own.sort(key=lambda name: (samples[name] / "model.py").stat().st_size)
        placed += [((i + rng.random()) / share, name) for i, name in enumerate(own)]
    chosen = [name for _, name in sorted(placed) if name not in FIRST]
    return [*(name for name in FIRST if name in samples), *chosen]


def choice(args: argparse.Namespace, samples: dict[str, Path]) -> dict[str, Any]:
    """How many samples there are, and which are chosen, in order; as the file has it, if there is one."""
    if args.choice and args.choice.exists():
        known: dict[str, Any] = json.loads(args.choice.read_text())
        return known
    made = {"samples": len(samples), "names": stratified(samples, args.count, args.by_size)}
    if args.choice:
        args.choice.write_text(json.dumps(made))
    return made


def validated(args: argparse.Namespace, names: list[str], samples: dict[str, Path]) -> list[Done]:
    """What is done before the budget is spent, in the order of the choice."""
    if args.memory:  # processes that are started inherit it
        resource.setrlimit(resource.RLIMIT_DATA, (args.memory << 30, resource.RLIM_INFINITY))
    end = time.monotonic() + args.budget
    rows = RowFile(args.work / f"work/{validate_sample.__name__}.jsonl", Done, "a validated sample")
    rows.path.parent.mkdir(parents=True, exist_ok=True)

    def done_of(name: str) -> Done | None:
        payload = validation(samples[name], "cpu")
        key = key_of(validate_sample, payload)
        if key not in rows.rows and time.monotonic() < end:
            rows.add(Done(key=key, name=name, **vars(jobs.run(validate_sample, payload))))
        done = rows.rows.get(key)
        return done and done.model_copy(update={"name": name})

    kept = []
    with Jobs(args.jobs, "cpu", args.limit) as jobs:
        for done in filter(None, jobs.map(done_of, names)):
            print(done.name, done.reason, done.message, done.seconds, flush=True)
            kept.append(done)
    return kept


def folded(graphs: dict[str, Any]) -> dict[str, Any]:
    """Folding by our rule and by GraphNet's, and GraphNet's own ranges."""
    from graph_net.torch.rp_expr.rp_expr_parser import RpExprParser
    from graph_net.torch.rp_expr.rp_expr_util import MakeNestedIndexRangeFromLetsListTokenRpExpr as nested

    sequences = [graph["operators"] for graph in graphs.values()]
    begun = time.monotonic()
    published = folding.ranges(folding.fold(sequences, whole_periods=False))
    seconds = time.monotonic() - begun
    begun = time.monotonic()
    parsed, _ = RpExprParser(folding.WINDOW, "default", folding.FOLDS - 1)(sequences)
    trees = nested(parsed)
    own = [sorted(set(tree.FilterSubTreeRangeBySize(folding.LEAST, folding.MOST))) for tree in trees]
    graphnet_s = time.monotonic() - begun
    winners = sum(map(_same_winner, sequences))
    periods = folding.fold(sequences)
    found = folding.ranges(periods)
    alone = {name: folding.fold([graphs[name]["operators"]]) for name in FIRST if name in graphs}
    together = [graphs[name]["operators"] for name in FIRST[1:] if name in graphs]
    alone["the resnets together"] = folding.fold(together)
    return {
        "sequences": len(sequences),
        "operators": sum(map(len, sequences)),
        "equal_winners": winners,
        "equal_ranges": sum(one == other for one, other in zip(published, own, strict=True)),
        "seconds": round(seconds, 2),
        "graphnet_seconds": round(graphnet_s, 2),
        "coverage_published": _coverage(published, sequences),
        "coverage_whole_periods": _coverage(found, sequences),
        "folds": [
            {"operators": fold.size, "times": fold.times, "names": _expanded(periods, fold.token)}
            for fold in periods.folds
        ],
        "alone": {
            name: [[fold.size, fold.times, _expanded(one, fold.token)] for fold in one.folds]
            for name, one in alone.items()
        },
    }


def _same_winner(sequence: list[str]) -> bool:
    """Whether both find a first winner of the same length and number of occurrences, or score."""
    from graph_net.torch.rp_expr.rp_expr import TokenIdAllocator, Tokenize
    from graph_net.torch.rp_expr.rp_expr_passes import FoldTokensPass

    tokens, allocator, _ = Tokenize([sequence])
    assert isinstance(allocator, TokenIdAllocator)
    own = folding.most_telling(tokens.tensors[0].numpy())
    one = FoldTokensPass(allocator, folding.WINDOW)
    length, starts = one.GetMostFrequentPatternLengthAndIndexes(tokens.tensors[0])
    return (length - 1) * (len(starts) - 1) == (own.length - 1) * (len(own.starts) - 1)


def _coverage(ranges: list[list[tuple[int, int]]], sequences: list[list[str]]) -> float:
    inside = sum(end - start for own in ranges for start, end in own)
    return round(inside / sum(map(len, sequences)), 4)


def _expanded(found: folding.Folded, token: int) -> list[str]:
    inner = {fold.token: fold.body for fold in found.folds}
    if token not in inner:
        return [str(found.names[token])]
    return [name for part in inner[token] for name in _expanded(found, part)]


def compared(args: argparse.Namespace, graphs: dict[str, Any]) -> dict[str, Any]:
    """Buckets, plateaus and the selection, ours and GraphNet's."""
    orm = types.ModuleType("orm_models")
    names = "get_session GraphNetSampleBucket GraphSample SampleOpNameList SampleInputTensorMeta"
    for name in names.split():
        setattr(orm, name, None)
    sys.modules["orm_models"] = orm
    sys.path.append(str(args.graphnet / "sqlite"))
    from graph_net.sample_pass.fusible_subgraph_ranges_generator import FusibleSubgraphRangesAnalyzer
    from graph_sample_bucket_generator import get_default_dimension_bucket as theirs

    sizes = [size for graph in graphs.values() for one in graph["inputs"] for size in one["shape"]]
    sizes += range(-2, 1 << 16)
    result: dict[str, Any] = {
        "sizes": len(sizes),
        "equal_buckets": sum(theirs(size) == dimension_bucket(size) for size in sizes),
    }
    rng, equal = random.Random(SEED), 0
    for _ in range(3000):
        kernels, counts = 1, []
        for _ in range(rng.randint(1, 40)):
            kernels = max(0, kernels + rng.choice([0, 0, 1, 1, -1, 2, -2]))
            counts.append(kernels)
        analyser = FusibleSubgraphRangesAnalyzer(counts, list(range(1, len(counts) + 1)), 0)
        equal += analyser.analyze() == fusible_ranges(counts)
    result |= {"plateaus": 3000, "equal_plateaus": equal}
    try:
        from graph_net.sqlite_util.select_evaluation_subset import select_evaluation_subset
    except ImportError as error:
        return result | {"selections": 0, "why": str(error)}
    equal = 0
    for _ in range(200):
        sequences = sorted({tuple(rng.choices("abcdef", k=rng.randint(1, 7))) for _ in range(25)})
        count = rng.randint(1, len(sequences))
        equal += select_evaluation_subset(sequences, count) == select(sequences, count)
    return result | {"selections": 200, "equal_selections": equal}


def hashed(graphs: dict[str, Any]) -> dict[str, Any]:
    """What the instance hash tells apart, and what it does not."""
    rng, result = random.Random(SEED), Counter[str]()
    records = list(graphs.values())
    for record in records:
        graph, metas = load_graph(record["nodes"]).graph, metas_of(record)
        expected = structural_hash(graph, metas).instance
        for number, node in enumerate(graph.nodes):
            node._rename(f"renamed_{number}")
        result["renamed"] += 1
        result["renamed_equal"] += structural_hash(graph, metas).instance == expected
        source = ast.unparse(ast.parse(model_text(graph)))
        names = [node.target for node in graph.find_nodes(op="placeholder")]
        named = tuple(
            type(meta)(**{**vars(meta), "name": name}) for meta, name in zip(metas, names, strict=True)
        )
        again = graph_of(Subgraph("formatted", Path("formatted"), named, source, "float32", ""), "cpu")
        inputs = [metas[position] for position in again.order]
        result["formatted"] += 1
        result["formatted_equal"] += (
            structural_hash(load_graph(again.nodes).graph, inputs).instance == expected
        )
        other = _reordered(graph, rng)
        if other is not None:
            result["reordered"] += 1
            result["reordered_equal"] += structural_hash(other, metas).instance == expected
    while records and result["mutated"] < MUTATIONS:
        record = rng.choice(records)
        graph, metas = load_graph(record["nodes"]).graph, metas_of(record)
        before = structural_hash(graph, metas).instance
        if _mutated(graph, rng):
            result["mutated"] += 1
            result["mutated_different"] += structural_hash(graph, metas).instance != before
    return dict(result)


def _reordered(graph: Any, rng: random.Random) -> Any:
    """The graph in a random order of its operators; None where memory orders them."""
    from torch import fx

    from passagent.evaluator.matching.effects import is_pure

    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if not all(map(is_pure, nodes)):
        return None
    made, known, left = fx.Graph(), {}, nodes
    for node in graph.find_nodes(op="placeholder"):
        known[node] = made.node_copy(node)
    while left:
        ready = [node for node in left if all(one in known for one in node.all_input_nodes)]
        node = rng.choice(ready)
        known[node] = made.node_copy(node, known.__getitem__)
        left = [one for one in left if one is not node]
    output = next(iter(reversed(graph.nodes)))
    made.node_copy(output, known.__getitem__)
    return made


def _mutated(graph: Any, rng: random.Random) -> bool:
    """Change one number of one operator that the result depends on."""
    needed: dict[Any, None] = {}
    waiting = list(graph.find_nodes(op="output"))
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed[node] = None
            waiting += node.all_input_nodes
    node = rng.choice([node for node in graph.nodes if node.op.startswith("call") and node in needed])
    places = [i for i, value in enumerate(node.args) if type(value) in (bool, int, float)]
    keys = [key for key, value in node.kwargs.items() if type(value) in (bool, int, float)]
    if not places and not keys:
        return False
    where: Any = rng.choice([*places, *keys])
    value = node.kwargs[where] if isinstance(where, str) else node.args[where]
    changed = (not value) if type(value) is bool else -value or 1  # 1 is lost in the lowest float
    if isinstance(where, str):
        node.kwargs = {**node.kwargs, where: changed}
    else:
        node.args = (*node.args[:where], changed, *node.args[where + 1 :])
    return True


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphnet", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--by-size", action="store_true", help="samples with a short text first")
    parser.add_argument("--budget", type=float, default=3600, help="s")
    parser.add_argument("--limit", type=int, default=600, help="seconds of a sample")
    parser.add_argument("--memory", type=int, help="GiB of a sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--choice", type=Path, metavar="FILE")
    parser.add_argument("--build", type=int, default=0, metavar="N")
    parser.add_argument("--operators", type=int, default=400)
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sys.path.append(str(args.graphnet))
    samples = find_samples([str(args.graphnet / "samples")])
    chosen = choice(args, samples)
    done = validated(args, chosen["names"], samples)
    graphs = {one.name: one.value for one in done if one.value}
    rows = [[one.name, one.reason, one.message, one.seconds] for one in done]
    for row in rows:
        row[2] = row[2].replace(str(args.graphnet.resolve()), "GRAPHNET")[:200]
    reasons = Counter(one.reason for one in done if not one.value)
    print(f"{len(graphs)} of {len(done)} accepted; {dict(reasons)}", flush=True)
    built: dict[str, Any] = {}
    if args.build:
        small = [name for name, one in graphs.items() if len(one["operators"]) <= args.operators]
        options = {"out": args.work, "shapes": args.shapes, "parallel": args.jobs, "limit": args.limit}
        options |= {"device": None, "evaluation": 200, "backward": False}
        chosen_samples = [str(samples[name]) for name in small[: args.build]]
        record = assembling.build(chosen_samples, options, lambda line: print(line, flush=True))
        built = {
            "samples": len(chosen_samples),
            "tasks": record["tasks"],
            "funnel": record["funnel"],
        }
    data: dict[str, Any] = {
        "samples": chosen["samples"],
        "chosen": len(chosen["names"]),
        "by_size": args.by_size,
        "validated": len(done),
        "accepted": len(graphs),
        "reasons": reasons,
        "folding": folded(graphs),
        "graphnet": compared(args, graphs),
        "hash": hashed(graphs),
        "build": built,
        "rows": rows,
    }
    for key in ("samples", "folding", "graphnet", "hash"):
        print(key, data[key], flush=True)
    print(keep("dataset-pipeline", "cpu", args.out, summary(data)))


if __name__ == "__main__":
    main()
