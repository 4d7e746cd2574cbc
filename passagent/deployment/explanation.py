"""Which pass of a package fits where in a model, and which does not and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from passagent.deployment.loading import Package
from passagent.deployment.rewriting import Refused, Replaced, rewrite
from passagent.extraction.factories import Model
from passagent.extraction.model_capture import capture_model


@dataclass(frozen=True)
class Explanation:
    """What the passes of packages do to a model."""

    replaced: list[Replaced]
    refused: list[Refused]
    breaks: list[str]
    """Where Dynamo breaks the graph: `FILE:LINE: reason`."""

    def __str__(self) -> str:
        lines = []
        for one in self.replaced:
            copied = f", with {', '.join(one.laid_out)} as contiguous copies" if one.laid_out else ""
            lines.append(f"{one.name}: replaces {', '.join(one.nodes)}{copied}")
        for left in self.refused:
            where = f"leaves {', '.join(left.nodes)}" if left.nodes else "matches nothing"
            lines.append(f"{left.name}: {where}: {left.reason}")
        lines += [f"graph break at {one}" for one in self.breaks]
        lines.append(f"{len(self.replaced)} places replaced")
        return "\n".join(lines)


def explain_model(model: Model, packages: Iterable[Package], dynamic: bool = False) -> Explanation:
    """Capture the model and rewrite its graphs, without compiling them. Raises PassagentError."""
    packages, captured = list(packages), capture_model(model, dynamic)
    found = Explanation([], [], captured.breaks)
    for piece in captured.pieces:
        done = rewrite(piece.graph_module.graph, packages, explains=True)
        found.replaced.extend(done.replaced)
        found.refused.extend(done.refused)
    matched = {one.name for one in found.replaced} | {one.name for one in found.refused if one.nodes}
    found.refused[:] = [one for one in found.refused if one.nodes or one.name not in matched]
    return found
