"""Recorded plans in place of replacement functions: subgraphs of the cases' tasks, run by replays.

    TRITON_INTERPRET=1 python tests/plans.py [CASE ...]

records honest cases, replays each on several draws of inputs in memory full of 0xFF, and prints for each in a
line of JSON how it compares with eager: "equal", or what is different.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import cases
import handmade as h
import torch
import triton
import triton.language
import triton_interpreter
from closeness import assert_as_near

from passagent.evaluator.correctness.double import Wide, wide
from passagent.evaluator.target import uses_triton
from passagent.plan import convert, facts, record
from passagent.plan.compile import compile_plan
from passagent.plan.recorded_pattern import planned_passes, replace_calls
from passagent.plan.recorder_process import recording_process
from passagent.plan.replay import Replay
from passagent.plan.table import Mode
from passagent.tasks import graphio
from passagent.tasks.inputs import make_inputs

DRAWS = ((11, 0), (12, 0), (13, 1), (14, 2))
"""Seed and kind of values, as `make_inputs` has them."""


def recorded(process, case, task):
    """What recording a case gives, and the device that it is for."""
    device = "cuda" if case.gpu or uses_triton(case.candidate) else "cpu"
    subgraphs = record.subgraphs_of(task, device)
    return record.record(process, case.candidate, subgraphs, device, facts.device_facts()), device


def poisoned(size, stride, dtype):
    """A fresh tensor of which every byte is 0xFF."""
    made = torch.empty_strided(size, stride, dtype=dtype)
    torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage()).fill_(0xFF)
    return made


def replay_of(plan, choices=()):
    """A plan that went through JSON and the checks, to be called on the CPU."""
    plan = h.read(plan.canonical())
    native = plan.model_copy(
        update={"kernels": {k: v for k, v in plan.kernels.items() if v.kind != "triton"}}
    )
    built = {}
    if native.kernels:
        built = compile_plan(plan_without_triton(plan))
    replay = Replay(plan, built, mode=Mode(choices, empty=poisoned))

    def call(*args):
        replay.arena.fill_(0xFF)
        return replay.call(*args)

    call.replay = replay
    return call


def plan_without_triton(plan):
    """The plan without launches of Triton kernels: what compiles for the CPU."""
    kept = [
        step
        for step in plan.steps
        if step.step != "choice"
        and not (step.step == "launch" and plan.kernels[step.kernel].kind == "triton")
    ]
    return plan.model_copy(update={"steps": tuple(kept)})


def rewritten(graph, recording, calls, replay=replay_of):
    """A captured graph with plans in the places of its calls; `replay` makes a function of a plan."""
    replays = functools.cache(lambda number, plan: replay(recording.passes[number].plans[plan]))

    def replacement(position, bindings):
        call = calls[position]
        run = replays(call.number, call.plan)

        def called(*args):  # FX has no name for a function of C
            return run(*args)

        return called, tuple(convert.bound_argument(part, bindings) for part in call.arguments)

    replace_calls(graph.graph, planned_passes(recording), calls, replacement)
    graph.recompile()
    return graph


def difference(case, task, answer):
    """How replays differ from eager, or None."""
    for subgraph, meta, seen in zip(
        answer.recording.subgraphs, task.subgraphs, record.subgraphs_of(task, "cpu"), strict=True
    ):
        eager = graphio.load_graph(seen.nodes)
        planned = rewritten(graphio.load_graph(seen.nodes), answer.recording, subgraph.calls)
        for seed, variant in DRAWS:
            draws = [make_inputs(meta, "cpu", seed, variant) for _ in "abc"]
            outputs, inputs = compared(eager, planned, seen.order, draws)
            if outputs or inputs:
                return outputs or f"inputs: {inputs}"
    return None


def compared(eager, planned, order, draws):
    """How outputs, and inputs afterwards, differ from eager's, or None, on three equal draws."""
    left, right, double = draws[0], draws[1], [wide(value) for value in draws[2]]
    with torch.no_grad():
        want = tensors(eager(*[left[i] for i in order]))
        got = tensors(planned(*[right[i] for i in order]))
        with Wide():
            exact = tensors(eager(*[double[i] for i in order]))
    return unlike(got, want, exact), unlike(*map(tensors, (right, left, double)))


def tensors(found):
    """The tensors of an output or of inputs."""
    return [
        t for t in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(t, torch.Tensor)
    ]


def unlike(got, want, exact):
    """What tells two lists of tensors apart, or None; `exact` is `want` in float64."""
    if len(got) != len(want):
        return f"{len(got)} tensors, not {len(want)}"
    for have, eager, true in zip(got, want, exact, strict=True):
        if (have.shape, have.dtype) != (eager.shape, eager.dtype):
            return f"{tuple(have.shape)} {have.dtype}, not {tuple(eager.shape)} {eager.dtype}"
        try:
            assert_as_near(have, eager, true)
        except AssertionError as error:
            return f"values: {error}"
    return None


def names_of(case):
    """The names of a case's modules, which are run from a directory of their own, as far as they run here."""
    found = {"triton": triton, "tl": triton.language}
    with tempfile.TemporaryDirectory() as place:
        case.candidate.write(place)
        sys.path.insert(0, place)
        for file in sorted(Path(place).rglob("*.py")):
            with suppress(Exception):  # without a GPU, or outside of its package
                found |= runpy.run_path(str(file))
        sys.path.remove(place)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(place):
                del sys.modules[name]
    return {name: value for name, value in found.items() if not name.startswith("__")}


def outcome(process, case, task):
    """In words: "equal", "not recorded: ...", "differs: ...", or an error."""
    triton_interpreter.names_outside.clear()
    triton_interpreter.names_outside.update(names_of(case))
    try:
        answer, _ = recorded(process, case, task)
        if answer.kind == "refused":
            return f"not recorded: {answer.message}"
        if not any(subgraph.calls for subgraph in answer.recording.subgraphs):
            return "matches nothing"
        problem = difference(case, task, answer)
        return "equal" if problem is None else f"differs: {problem}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(names):
    """Print the outcome of each honest case that is named, of all if none is."""
    triton_interpreter.round_as_hardware_does()
    triton_interpreter.replay_by_interpreting()
    found = cases.cases_of("honest").values()
    with tempfile.TemporaryDirectory() as scratch, recording_process() as process:
        write = functools.cache(lambda name: cases.write_task(Path(scratch) / name, name))
        for case in found:
            if not names or case.name in names:
                print(json.dumps([case.name, outcome(process, case, write(case.task))]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
