"""The free tier: what an evaluation, the compilers and the machine's measured rates say. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterable

from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.result import Evaluation, GraphResult
from passagent.experience.profiling.profile_record import GraphProfile, KernelProfile, Profile
from passagent.kernels.build import Signature
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.kernels.vector_report import vector_report
from passagent.plan.model import NativeKernel, Plan


def free_profile(evaluation: Evaluation, machine: Machine, device_model: str = "") -> Profile:
    """The record of an evaluation."""
    issue_s = 0.0 if evaluation.dispatch == "graph" else machine.issue_s  # issuing is not in the times
    score, mean = evaluation.as_score, evaluation.gmean_speedup
    return Profile(
        tier="free",
        task=evaluation.task,
        candidate=evaluation.candidate,
        device=evaluation.device,
        device_model=device_model,
        bandwidth=machine.best_bandwidth,
        peak_flops=dict(machine.flops),
        exactness=score / mean if evaluation.status == "ok" and score is not None and mean else None,
        graphs=[_graph(graph, machine, issue_s) for graph in evaluation.graphs],
    )


def _graph(graph: GraphResult, machine: Machine, issue_s: float) -> GraphProfile:
    memory_s = machine.light_s(graph.moved_bytes, 0, graph.dtype)
    compute_s = machine.light_s(0, graph.flops or 0, graph.dtype)
    light_s = max(memory_s, compute_s)
    return GraphProfile(
        name=graph.name,
        dtype=graph.dtype,
        moved_bytes=graph.moved_bytes,
        plan_bytes=graph.plan_bytes,
        flops=graph.flops or 0,
        measured_us=graph.compiled_ms and graph.compiled_ms * 1e3,
        light_us=light_s * 1e6,
        memory_us=memory_s * 1e6,
        compute_us=compute_s * 1e6,
        issue_us=issue_s * 1e6,
        headroom=graph.compiled_ms * 1e-3 / (light_s + issue_s) if graph.compiled_ms else None,
        launches=graph.launches,
        kernels=[
            KernelProfile(
                name=one.name,
                launches=one.launches,
                registers=one.registers,
                stack_bytes=one.stack_bytes,
                shared_bytes=one.shared_bytes,
            )
            for one in graph.kernels
        ],
    )


def add_vector_reports(profile: Profile, plans: Iterable[Plan]) -> None:
    """What GCC says of the loops of the C++ kernels in `plans`, beside each kernel of that name."""
    found = {}
    for kernel in (kernel for plan in plans for kernel in plan.kernels.values()):
        if isinstance(kernel, NativeKernel) and kernel.kind == "cpp" and kernel.entry not in found:
            signature = Signature(tuple(parameter.type for parameter in kernel.signature))
            try:
                found[kernel.entry] = vector_report(kernel.text, kernel.entry, signature)
            except (KernelRefused, KernelBuildError) as error:
                profile.notes.append(f"{kernel.entry}: no vectorisation report: {str(error).splitlines()[0]}")
    for one in (kernel for graph in profile.graphs for kernel in graph.kernels if kernel.name in found):
        one.vector_loops, one.scalar_loops, missed = found[one.name]
        one.missed = missed[:5]
