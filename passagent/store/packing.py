"""Texts and results as they lie in the database: packed, for a search writes the same things again and again.

A text is compressed with another text as the dictionary; what both have in common then costs next to nothing.
A result (Evaluation as plain data) is its JSON, compressed, and its timing samples: whole nanoseconds, as
distances from the median in the largest unit that divides all, the bytes of equal weight side by side.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

LEVEL = 6
_SAMPLES = ("eager_samples_ms", "compiled_samples_ms")
_NS = 1e6
"""Nanoseconds in a millisecond."""
_HEAD = struct.Struct("<BI")
_FORMAT = 1
# Part of format 1: a change of it would make what is stored unreadable.
_WORDS_1 = (
    b'"error": null, "matches": 1, "applied": ["Fused"], "mismatches": [{"pass_name": "Fused", '
    b'"matched_nodes": 4, "pattern_nodes": 9, "pattern_node": "call_function[target=operator.mul](args = ('
    b'", "graph_node": null, "reason": "}], "violations": [{"rule": "", "file": "", "line": 1, "message": "'
    b'"task": "candidate": "device": "cuda", "cpu", "dispatch": "dynamo", "direct", "timing": "none", "wall",'
    b' "status": "mismatch", "load_error", "compile_error", "runtime_error", "wrong_result", "timeout", '
    b'"out_of_memory", "refused", "as_score": null, "es": {"-10": 0.10000000000000002, '
    b'"-9": 0.10000000000000002, "-8": 0.10000000000000002, "-7": 0.10000000000000002, "-6": 1.0, "-5": 1.0, '
    b'"-4": 1.0, "-3": 1.0, "-2": 1.0, "-1": 1.0, "0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0, "4": 1.0}, '
    b'"graphs": [{"name": "graphs/", "dtype": "float32", "float16", "bfloat16", "status": "ok", '
    b'"error": null, "matches": 1, "applied": ["Fuse"], "mismatches": [], "passes_from_t": null, '
    b'"passes_from_t": -6, "max_abs_diff": null, "max_abs_diff": 4.76837158203125e-07, "worst": null, '
    b'"worst": {"output": 0, "index": [0, 1, 2], "expected": -1.07446396350, "got": -1.07446396350}, '
    b'"float64_error": null, "eager_float64_error": null, "speedup": null, "eager_ms": null, '
    b'"compiled_ms": null, "eager_samples_ms": [], "compiled_samples_ms": [], "not_timed": null, '
    b'"trials": 0, "blocks": [], "unstable": false, "nodes_before": 0, "nodes_after": 0}, '
    b'"speedup": {"e2e": 1.0, "device": null, "low": 0.99, "high": 1.01}, "eager_ms": 0.063985, '
    b'"compiled_ms": 0.034571, "eager_samples_ms": [271, 0], "compiled_samples_ms": [271, 0], '
    b'"not_timed": null, "trials": 271, "blocks": [12, 9, 12, 8, 8, 13, 8, 12, 7, 10, 11], '
    b'"unstable": false, "nodes_before": 11, "nodes_after": 5}], "violations": [], "error": null, '
    b'"fast_1": 1.0, "gmean_speedup": null, "as_low": null, "as_high": null, "validator": null, '
    b'"protections": {"descriptors_closed": "on", "user_namespace": "on", "network_namespace": "on", '
    b'"ipc_namespace": "on", "private_scratch": "on", "resource_limits": "on", "no_new_privileges": "on", '
    b'"no_capabilities": "on", "not_dumpable": "on", "dies_with_parent": "on", "landlock": "on", '
    b'"seccomp": "on"}, "device_state": {"before": {"load_1m": 1.35}, "after": {"load_1m": 1.56}}, '
    b'"protocol": {"kind": "paired", "warmups": 25, "trials": 100, "max_trials": 2000, "budget_s": 0.5, '
    b'"order": "blocks of both sides in turn", "values": "fresh for every call", '
    b'"l2": "warm: inputs are written just before the call", "interval": "bootstrap over pairs of blocks, '
    b'95%", "malloc": "freed memory is kept", "b": 0.1, "p": 0.0, "input_sets": 3, "strict_t": -3}, '
    b'"environment": {"machine": "x86_64", "cpu": "AMD EPYC", "cores": 2, "threads": 1, "load_1m": 1.56, '
    b'"python": "3.11.7", "torch": "2.13.0+cpu", "triton": "3.9.0", "passagent": "0.1.0"}, '
    b'"evaluator_version": "0.1.0+", "seconds": 3.647}'
)


# Part of how diagnoses are stored, as _WORDS_1 is of results.
_DIAGNOSIS_1 = (
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


def pack_diagnosis(text: str) -> bytes:
    """A diagnosis (JSON) as it is stored with a node."""
    return pack_text(text.encode(), _DIAGNOSIS_1)


def unpack_diagnosis(packed: bytes | str) -> dict[str, Any]:
    """The inverse of pack_diagnosis, as plain data; also of JSON text, which older versions stored."""
    text = packed if isinstance(packed, str) else unpack_text(packed, _DIAGNOSIS_1)
    return dict(json.loads(text))


def pack_text(text: bytes, dictionary: bytes = b"") -> bytes:
    """`text` compressed; of `dictionary`, which unpacking needs too, the last 32 kB are of use."""
    packer = _packer(len(dictionary) + len(text), dictionary)
    return packer.compress(text) + packer.flush()


def unpack_text(packed: bytes, dictionary: bytes = b"") -> bytes:
    """The inverse of pack_text."""
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    return unpacker.decompress(packed)


def pack_result(result: dict[str, Any]) -> bytes:
    """An evaluation as plain data, packed without loss."""
    graphs, planes = [dict(graph) for graph in result["graphs"]], []
    for graph in graphs:
        for name in _SAMPLES:
            values = np.asarray(graph.get(name) or (), dtype=np.float64)
            whole = np.rint(values * _NS)
            if len(values) and (whole / _NS == values).all() and whole.max() - whole.min() < 2**31:
                unit = int(np.gcd.reduce(whole.astype(np.int64))) or 1
                counted = whole.astype(np.int64) // unit
                middle = int(np.partition(counted, len(values) // 2)[len(values) // 2])
                away = counted - middle
                planes.append(((away << 1) ^ (away >> 63)).astype("<u4"))
                graph[name] = {"n": len(values), "middle": middle, "unit": unit}
    text = json.dumps({**result, "graphs": graphs}).encode()
    head = pack_text(text, _WORDS_1)
    samples = np.concatenate(planes) if planes else np.zeros(0, "<u4")
    weights = samples.view(np.uint8).reshape(-1, 4).T.tobytes()  # all lowest bytes, then all second ones, ...
    # lowest bytes do not repeat, highest ones are all the same: there is nothing longer to look for than runs
    packer = _packer(0, strategy=zlib.Z_RLE)
    return _HEAD.pack(_FORMAT, len(head)) + head + packer.compress(weights) + packer.flush()


def unpack_result(packed: bytes | str) -> dict[str, Any]:
    """The inverse of pack_result; also of JSON text, which older versions stored."""
    if isinstance(packed, str):
        return dict(json.loads(packed))
    version, length = _HEAD.unpack_from(packed)
    if version != _FORMAT:
        raise ValueError(f"a result of the unknown format {version}")
    rest = packed[_HEAD.size :]
    result: dict[str, Any] = json.loads(unpack_text(rest[:length], _WORDS_1))
    weights = np.frombuffer(zlib.decompress(rest[length:]), np.uint8).reshape(4, -1)
    samples = np.ascontiguousarray(weights.T).view("<u4").reshape(-1).astype(np.int64)
    away = (samples >> 1) ^ -(samples & 1)
    used = 0
    for graph in result["graphs"]:
        for name in _SAMPLES:
            stored = graph.get(name)
            if isinstance(stored, dict):
                part = (away[used : used + stored["n"]] + stored["middle"]) * stored.get("unit", 1)
                used += stored["n"]
                graph[name] = (part / _NS).tolist()
    return result


def _packer(size: int, dictionary: bytes = b"", strategy: int = zlib.Z_DEFAULT_STRATEGY) -> Any:
    """A compressor that looks back over `size` bytes: with more room than that, clearing it takes longest."""
    bits = min(max((size + 262).bit_length(), 9), zlib.MAX_WBITS)
    options = {"zdict": dictionary} if dictionary else {}
    return zlib.compressobj(LEVEL, zlib.DEFLATED, bits, max(bits - 7, 3), strategy, **options)
