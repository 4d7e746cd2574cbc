"""The factored form of ES(t) and S(t), as GraphNet writes it: what the scores are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passagent.evaluator.score import B, GraphScore, P, geometric_mean, rectified


@dataclass(frozen=True)
class Macro:
    """The factored form's terms at one t (GraphNet Eq. 3, Appendices B and C)."""

    alpha: float
    """Geometric mean speedup of the correct subgraphs; 1 if there is none."""
    beta: float
    """Geometric mean speedup of the correct ones that are slower than eager; 1 if there is none."""
    lam: float
    """Share of correct subgraphs."""
    eta: float
    """Share of slow-downs among the correct ones; 0 if there is none."""
    gamma: float
    """Geometric mean of the penalty factors of the others; b if there is none."""


def macro(graphs: Sequence[GraphScore], t: int, b: float = B) -> Macro:
    """alpha, beta, lambda, eta and gamma of ES(t)."""
    right = [g.speedup for g in graphs if g.correct(t) and g.speedup is not None]
    slow = [s for s in right if s < 1]
    wrong = [rectified(g, t, b) for g in graphs if not g.correct(t)]
    return Macro(
        alpha=geometric_mean(right) if right else 1.0,
        beta=geometric_mean(slow) if slow else 1.0,
        lam=len(right) / len(graphs),
        eta=len(slow) / len(right) if right else 0.0,
        gamma=geometric_mean(wrong) if wrong else b,
    )


def es_from_macro(terms: Macro, p: float = P) -> float:
    """ES(t) = alpha^lambda * beta^(lambda*eta*p) * gamma^(1-lambda) (GraphNet Eq. 3)."""
    return terms.alpha**terms.lam * terms.beta ** (terms.lam * terms.eta * p) * terms.gamma ** (1 - terms.lam)


def s_score(graphs: Sequence[GraphScore], t: int, b: float = B, p: float = P) -> float:
    """S(t) = alpha^lambda * beta^(lambda*eta*p) * b^(1-lambda) (GraphNet Eq. 1): nothing is forgiven."""
    terms = macro(graphs, t, b)
    return terms.alpha**terms.lam * terms.beta ** (terms.lam * terms.eta * p) * b ** (1 - terms.lam)
