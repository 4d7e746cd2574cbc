"""Static inspection of a candidate, for whoever asks: the referee, the agent's tools, a command."""

from __future__ import annotations

from passagent.evaluator.guards import static
from passagent.evaluator.result import Candidate, Violation
from passagent.evaluator.target import target_of


def inspect(candidate: Candidate, host_extensions: bool = False, device: str = "cuda") -> list[Violation]:
    """Every broken integrity rule in the candidate's files, by file and line; [] for an honest candidate.

    Runs nothing of the candidate and needs no device. `host_extensions` permits ways to native host code, for
    a trusted author. `device`: messages say what to write instead for candidates that run there.
    """
    return static.inspect(candidate, host_extensions, target_of(device))
