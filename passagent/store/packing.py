"""Texts and results as they lie in the database: packed, for a search writes the same things again and again.

A text is compressed with another text as the dictionary; what both have in common then costs next to nothing.
A result (Evaluation as plain data) is its JSON, compressed, and its timing samples: whole nanoseconds, as
distances from the smallest in the largest unit that divides all. Their low bits are noise, which nothing
compresses: they are stored as they are, side by side, and only what is above them is compressed.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

LEVEL = 3
_SAMPLES = ("eager_samples_ms", "compiled_samples_ms")
_NS = 1e6
"""Nanoseconds in a millisecond."""
_HEAD = struct.Struct("<BI")
_COUNTS = struct.Struct("<BI")
_ALONE, _LIKE_ANOTHER = 2, 3
"""Formats of results: by themselves, and with another one as the dictionary."""
_LOW = 6
"""Low bits that are noise at most; above them a byte each, 255 for what does not fit, which follows whole."""
_LARGE = 255
# Part of the format: with others, what is stored could not be read.
_WORDS = (
    b'{"task": "", "candidate": "", "device": "cuda", "dispatch": "dynamo", "timing": "none", "device": '
    b'"cpu", "dispatch": "direct", "timing": "wall", "status": "mismatch", "status": "load_error", "status": '
    b'"compile_error", "status": "runtime_error", "error": "RuntimeError: ", "status": "timeout", "status": '
    b'"out_of_memory", "status": "refused", "as_score": null, "es": null, "as_score": 0.1, "es": {"-10": '
    b'0.10000000000000002, "-9": 0.10000000000000002, "-8": 0.10000000000000002, "-7": 0.10000000000000002, '
    b'"-6": 1.0, "-5": 1.0, "-4": 1.0, "-3": 1.0, "-2": 1.0, "-1": 1.0, "0": 1.0, "1": 1.0, "2": 1.0, "3": '
    b'1.0, "4": 1.0}, "graphs": [{"name": "", "dtype": "float32", "status": "mismatch", "error": null, '
    b'"matches": 0, "applied": [], "mismatches": [{"pass_name": "Fused", "matched_nodes": 4, '
    b'"pattern_nodes": 9, "pattern_node": "%mul : call_function[target=operator.mul](args = (%", '
    b'"graph_node": null, "reason": ""}], "passes_from_t": null, "max_abs_diff": null, "worst": null, '
    b'"float64_error": null, "eager_float64_error": null, "speedup": null, "eager_ms": null, "compiled_ms": '
    b'null, "eager_samples_ms": [], "compiled_samples_ms": [], "not_timed": null, "trials": 0, "blocks": [], '
    b'"pairs": [], "unstable": false, "nodes_before": 0, "nodes_after": 0}, {"name": "", "dtype": '
    b'"bfloat16", "status": "wrong_result", "dtype": "float16", "status": "ok", "error": null, "matches": 1, '
    b'"applied": ["Fuse"], "mismatches": [], "passes_from_t": -6, "max_abs_diff": 4.76837158203125e-07, '
    b'"worst": {"output": 0, "index": [0, 1, 2], "expected": 1.0, "got": -1.0}, "float64_error": 1.1e-07, '
    b'"eager_float64_error": 1.0e-07, "speedup": {"e2e": 1.0, "device": null, "low": 0.9, "high": 1.0}, '
    b'"eager_ms": 0.06, "compiled_ms": 0.03, "eager_samples_ms": {"n": 271, "low": 6759, "unit": 10}, '
    b'"compiled_samples_ms": {"n": 271, "low": 2918, "unit": 10}, "not_timed": null, "trials": 271, '
    b'"blocks": [12, 8, 13, 13, 13, 9, 7, 8, 13, 11, 10, 13, 8, 11, 7, 10, 9, 11, 8, 9, 11], "pairs": [7, '
    b'21], "unstable": true, "nodes_before": 11, "nodes_after": 5}, "trials": 100, "unstable": false, '
    b'"nodes_before": 4, "nodes_after": 1}], "violations": [{"rule": "", "file": "", "line": 1, "message": '
    b'""}], "violations": [], "error": null, "fast_1": 0.0, "gmean_speedup": null, "as_low": null, '
    b'"as_high": null, "fast_1": 1.0, "gmean_speedup": 1.0, "as_low": 1.0, "as_high": 1.0, "validator": '
    b'null, "protections": {"descriptors_closed": "on", "user_namespace": "on", "network_namespace": "on", '
    b'"ipc_namespace": "on", "private_scratch": "on", "resource_limits": "on", "no_new_privileges": "on", '
    b'"no_capabilities": "on", "not_dumpable": "on", "dies_with_parent": "on", "landlock": "on", "seccomp": '
    b'"on"}, "device_state": {"before": {"load_1m": 0.37}, "after": {"load_1m": 0.66}}, "protocol": {"kind": '
    b'"paired", "warmups": 25, "trials": 100, "max_trials": 2000, "budget_s": 0.5, "order": "both sides in '
    b'turn", "pairs_of_workers": 2, "values": "fresh for every call", "l2": "warm: inputs are written just '
    b'before the call", "interval": "bootstrap over pairs of blocks, 95%", "malloc": "freed memory is kept", '
    b'"b": 0.1, "p": 0.0, "input_sets": 3, "strict_t": -3}, "environment": {"machine": "x86_64", "cpu": "AMD '
    b'EPYC", "cores": 2, "threads": 1, "load_1m": 0.66, "python": "3.11.7", "torch": "2.13.0+cpu", "triton": '
    b'"3.9.0", "passagent": "0.1.0"}, "evaluator_version": "0.1.0+", "seconds": 3.747}'
)


# The same of diagnoses.
_DIAGNOSIS = (
    b'{"label": "wrong_result", "text": "1 of 3 subgraphs fail, all of them bfloat16 or float16; first : '
    b"mismatch. matched 4 of 9 nodes; against : the graph's node has another target. runtime_error. "
    b"RuntimeError: does not take tensors of shapes. Output 0 at [0, 1, 2] is 1.5, eager has 1.25 (largest "
    b'difference 0.001; passes at t >= -5)."{"label": "memory_bound", "text": "Correct on all subgraphs; '
    b"memory-bound on 1 of 3: the time is close to what moving the inputs and outputs takes: only fewer "
    b"bytes help (fuse what still makes an intermediate, read each input once, keep the dtype small). "
    b"latency-bound on 2 of 3: the time is mostly the cost of issuing operators and kernels, not of the "
    b"work: fewer operators and launches help, and less host code around them; faster arithmetic does not. "
    b"instruction-bound on 2 of 3: neither memory traffic nor issuing explains the time: the code inside the "
    b"kernel, its access pattern, its parallelism, or an operator that was left as it is decides. 1 of 3 "
    b"subgraphs are slower than eager. The least gain is on graphs/ (float32): 1.50x, 0.0438 ms against "
    b"0.0778 ms; 11 operators became 5; moving its 0.74 MB takes 0.0061 ms (14% of the time), issuing takes "
    b'0.0052 ms (12%). Some timings were unstable; do not read small differences into them.", "graphs": '
    b'[{"name": "", "limiter": "instruction_bound", "memory_share": 0., "latency_share": 0., "speedup": 1.}, '
    b'{"name": "", "limiter": "memory_bound", "memory_share": 0., "latency_share": 0., "speedup": 1.}, '
    b'{"name": "", "limiter": "latency_bound", "memory_share": 0.1, "latency_share": 0.4, "speedup": 1.}]}'
)


class PackedResult(NamedTuple):
    """An evaluation as it is stored."""

    head: bytes
    """All but the timing samples."""
    samples: bytes
    """Empty where nothing was timed."""


def pack_diagnosis(text: str) -> bytes:
    """A diagnosis (JSON) as it is stored with a node."""
    return pack_text(text.encode(), _DIAGNOSIS)


def unpack_diagnosis(packed: bytes) -> dict[str, Any]:
    """The inverse of pack_diagnosis, as plain data."""
    return dict(json.loads(unpack_text(packed, _DIAGNOSIS)))


def pack_text(text: bytes, dictionary: bytes = b"") -> bytes:
    """`text` compressed; of `dictionary`, which unpacking needs too, the last 32 kB are of use."""
    packer = _packer(len(dictionary) + len(text), dictionary)
    return packer.compress(text) + packer.flush()


def unpack_text(packed: bytes, dictionary: bytes = b"") -> bytes:
    """The inverse of pack_text."""
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    return unpacker.decompress(packed)


def pack_result(result: dict[str, Any], example: bytes = b"") -> PackedResult:
    """An evaluation as plain data, packed without loss; `example`: the text_of another one's head like it."""
    graphs = [dict(graph) for graph in result["graphs"]]
    timed = [(graph, name) for graph in graphs for name in _SAMPLES if graph.get(name)]
    sizes = [len(graph[name]) for graph, name in timed]
    times = array("d", chain.from_iterable(graph[name] for graph, name in timed))
    counted = _counted(np.frombuffer(times), sizes) if timed else None
    if counted is not None:
        for (graph, name), size, low, unit in zip(timed, sizes, *counted[1:], strict=True):
            graph[name] = {"n": size, "low": low, "unit": unit}
    head = pack_text(json.dumps({**result, "graphs": graphs}).encode(), _WORDS + example)
    samples = _pack_counts(counted[0]) if counted is not None else b""
    return PackedResult(_HEAD.pack(_LIKE_ANOTHER if example else _ALONE, len(head)) + head, samples)


def needs_example(head: bytes) -> bool:
    """Whether the head of a result was packed with an example."""
    return head[:1] == bytes([_LIKE_ANOTHER])


def text_of(head: bytes) -> bytes:
    """What a head says that was packed without an example, to be one."""
    return unpack_text(head[_HEAD.size :], _WORDS)


def _counted(exact: Any, sizes: list[int]) -> tuple[Any, list[int], list[int]] | None:
    """Rows of times, of these sizes, as counts of a unit above each row's smallest one, these and the units.

    None if they are no whole nanoseconds, or differ by more than a count may be.
    """
    whole = np.rint(exact * _NS)
    if not (whole / _NS == exact).all() or not abs(whole).max() < 2**53:
        return None
    starts = np.cumsum([0, *sizes[:-1]])
    counts = whole.astype(np.int64)
    units = np.maximum(np.gcd.reduceat(counts, starts), 1)
    counts //= np.repeat(units, sizes)
    lows = np.minimum.reduceat(counts, starts)
    counts -= np.repeat(lows, sizes)
    return None if counts.max() >= 2**31 else (counts, lows.tolist(), units.tolist())


def _pack_counts(counts: Any) -> bytes:
    """Counts below 2^31: how many low bits there are, those that are too large, the low bits, the others."""
    middle = len(counts) // 2
    bits = min(_LOW, int(np.partition(counts, middle)[middle]).bit_length())
    above = counts >> bits
    large = above >= _LARGE
    low = np.unpackbits(counts.astype(np.uint8)[:, None], axis=1, count=bits, bitorder="little")
    packer = _packer(len(counts), strategy=zlib.Z_RLE)
    return (
        _COUNTS.pack(bits, int(large.sum()))
        + above[large].astype("<u4").tobytes()
        + np.packbits(low).tobytes()
        + packer.compress(np.minimum(above, _LARGE).astype(np.uint8).tobytes())
        + packer.flush()
    )


def _unpack_counts(packed: bytes, size: int) -> Any:
    """The inverse of _pack_counts, of `size` counts."""
    bits, larges = _COUNTS.unpack_from(packed)
    start = _COUNTS.size + 4 * larges
    end = start + -(-size * bits // 8)
    low = np.unpackbits(np.frombuffer(packed[start:end], np.uint8), count=size * bits).reshape(size, bits)
    above = np.frombuffer(zlib.decompress(packed[end:]), np.uint8).astype(np.int64)
    above[above == _LARGE] = np.frombuffer(packed[_COUNTS.size : start], "<u4")
    return (above << bits) + (low.astype(np.int64) << np.arange(bits)).sum(axis=1)


def unpack_result(packed: bytes, samples: bytes = b"", example: bytes = b"") -> dict[str, Any]:
    """The inverse of pack_result."""
    result = unpack_figures(packed, example)
    stored = [
        (graph, name, graph[name])
        for graph in result["graphs"]
        for name in _SAMPLES
        if isinstance(graph.get(name), dict)
    ]
    if not stored:
        return result
    size = sum(of["n"] for _, _, of in stored)
    counts = _unpack_counts(samples, size)
    used = 0
    for graph, name, of in stored:
        part = counts[used : used + of["n"]] + of["low"]
        used += of["n"]
        graph[name] = (part * of["unit"] / _NS).tolist()
    return result


def unpack_figures(packed: bytes, example: bytes = b"") -> dict[str, Any]:
    """A packed result's head; in place of samples it has what unpacking them takes."""
    version, length = _HEAD.unpack_from(packed)
    if version not in (_ALONE, _LIKE_ANOTHER):
        raise ValueError(f"a result of the unknown format {version}")
    head = packed[_HEAD.size : _HEAD.size + length]
    result: dict[str, Any] = json.loads(unpack_text(head, _WORDS + example))
    return result


def _packer(size: int, dictionary: bytes = b"", strategy: int = zlib.Z_DEFAULT_STRATEGY) -> Any:
    """A compressor that looks back over `size` bytes: with more room than that, clearing it takes longest."""
    bits = min(max((size + 262).bit_length(), 9), zlib.MAX_WBITS)
    options = {"zdict": dictionary} if dictionary else {}
    return zlib.compressobj(LEVEL, zlib.DEFLATED, bits, max(bits - 7, 3), strategy, **options)
