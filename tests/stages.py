"""What each stage of an evaluation may take: time, memory, sizes. docs/evaluator.md has the same table."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.evaluator.sizes import ERROR, FILES


@dataclass(frozen=True)
class Stage:
    """A stage of an evaluation, and what it may take."""

    name: str
    wall_s: float
    """0: none of its own."""
    memory: int
    """Address space of its process, bytes; 0: as much as there is."""
    sizes: dict[str, int]
    """What it is given or gives, by what is counted."""
    cpu_s: int = 0
    """Processor time, s, which is the same on a busy machine; 0: as much as the wall clock gives."""


def stages() -> list[Stage]:
    """Every stage, in the order in which a candidate meets them. Imports torch."""
    from passagent.config import EvaluatorConfig
    from passagent.evaluator.judging.effort import CANDIDATE_S
    from passagent.evaluator.runner.endings import LIMITS
    from passagent.kernels import objects
    from passagent.plan import check, messages, record
    from passagent.sandbox import limits
    from passagent.sandbox.channel import MAX_MESSAGE
    from passagent.sandbox.child import START_S

    config = EvaluatorConfig()
    memory = int(config.memory_gb * 2**30)
    scratch = {"bytes of scratch": LIMITS.scratch, "files in it": LIMITS.files}
    step = {
        "bytes of a message": MAX_MESSAGE,
        "bytes of a file or log": LIMITS.file,
        "characters of an error": ERROR,
    }
    sizes = {
        "compile": {"characters of a source": limits.MAX_SOURCE},
        "read an object": {
            "characters of a name": objects.LONGEST_NAME,
            "references in it": objects.REFERENCES,
        },
    }
    tools = [
        Stage(
            f"tool: {name}",
            tool.wall_s,
            tool.memory,
            {"bytes of a file or of its output": tool.file, **sizes.get(name, {})},
            tool.cpu_s,
        )
        for name, tool in limits.TOOLS.items()
    ]
    return [
        Stage("all of a candidate's own doing", CANDIDATE_S, 0, {}),
        Stage(
            "recording",
            record.WALL_S,
            record.LIMITS.memory,
            FILES | {"bytes of plans": messages.MOST_ANSWER},
            record.LIMITS.cpu_s,
        ),
        Stage("check of the plans", 0, 0, {"steps": check.MOST_STEPS}),
        Stage("start of a worker", START_S, memory, scratch),
        Stage("step of a worker", config.timeout_s, memory, step, LIMITS.cpu_s),
        *tools,
    ]
