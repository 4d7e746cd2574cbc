"""A profile as people read it."""

from __future__ import annotations

from passagent.experience.profiling.profile_record import GraphProfile, KernelProfile
from passagent.experience.profiling.profiler import Profiled


def profile_text(found: Profiled) -> str:
    """Each subgraph in a line, its kernels beneath it, and what limits the pass."""
    profile = found.profile
    lines = [f"{profile.task} on {profile.device_model or profile.device}, tier {profile.tier}"]
    if profile.bandwidth:
        peaks = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in profile.peak_flops.items())
        lines.append(f"measured here: copies {profile.bandwidth / 1e9:,.1f} GB/s; products {peaks} GFLOP/s")
    for graph in profile.graphs:
        lines += [_graph(graph), *(f"    {_kernel(kernel)}" for kernel in graph.kernels)]
    lines += ["what limits it:", *(f"  {line}" for line in found.text().splitlines())]
    return "\n".join(lines)


def _graph(graph: GraphProfile) -> str:
    words = [f"{graph.moved_bytes / 1e6:,.2f} MB"]
    words += [f"{graph.flops / 1e6:,.1f} MFLOP"] if graph.flops else []
    words += [f"{graph.launches} launches"] if graph.launches is not None else []
    words += [f"{graph.measured_us:,.1f} us"] if graph.measured_us else []
    words += [f"speed of light {graph.light_us:,.1f} us"] if graph.light_us is not None else []
    words += [f"headroom {graph.headroom:.2f}x"] if graph.headroom else []
    if graph.wall_us and graph.busy_us is not None:
        words.append(f"{graph.busy_us:,.1f} of {graph.wall_us:,.1f} us in kernels")
    return f"  {graph.name} ({graph.dtype}): {', '.join(words)}"


def _kernel(kernel: KernelProfile) -> str:
    words = [f"{kernel.launches} x"] if kernel.launches > 1 else []
    words += [f"{kernel.duration_us:,.1f} us"] if kernel.duration_us is not None else []
    words += [f"{kernel.registers} registers"] if kernel.registers is not None else []
    words += [f"{kernel.stack_bytes} B local"] if kernel.stack_bytes else []
    words += [f"{kernel.shared_bytes} B shared"] if kernel.shared_bytes else []
    if kernel.vector_loops is not None:
        words.append(f"{kernel.vector_loops} vector loops, {kernel.scalar_loops} scalar")
    return f"{kernel.name[:50]}: {', '.join(words) or 'nothing known'}"
