"""The attentions of a whole model's graph, for who cuts it into regions."""

from __future__ import annotations

from torch import fx

from passagent.expert.attention import is_attention
from passagent.expert.region import find_regions


def attentions(graph: fx.Graph) -> list[list[fx.Node]]:
    """The operators of each attention that is one kernel on a GPU."""
    return [region.nodes for region in find_regions(graph, "cuda").regions if is_attention(region)]
