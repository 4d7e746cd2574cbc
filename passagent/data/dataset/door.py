"""What stands between a database and a data set: examples are checked once more before they leave.

A node must be what was measured: its files have the key that they are stored under, its score is that of its
evaluation, which is the aggregate of its ES(t). Nothing that looks like a secret goes out.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from passagent.data.dataset.columns import Revision
from passagent.errors import PassagentError
from passagent.evaluator.score import aggregate
from passagent.search.candidates import canonical_key
from passagent.store import blobs, evaluations
from passagent.store.database import Store
from passagent.system.redaction import redact

_EQUAL = 1e-9
"""Relative: how far a score may be from the aggregate of its parts."""
_SHAPES = {
    "an AWS key": (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    ),
    "a GitLab token": (("glpat-",), r"\bglpat-[\w-]{20,}"),
    "a Hugging Face token": (("hf_",), r"\bhf_[A-Za-z0-9]{30,}"),
    "a Google key": (("AIza",), r"\bAIza[\w-]{35}"),
    "a Slack token": (("xox",), r"\bxox[abprs]-[\w-]{10,}"),
    "a private key": (("PRIVATE KEY-----",), r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
}
"""A kind of secret: words one of which is in every text that has it, and its shape."""


class NotFit(PassagentError):
    """An example must not go out; the message names it and what to do."""


def find_secret(text: str) -> str | None:
    """What `text` holds that looks like a secret, in words; None: nothing."""
    for kind, (words, shape) in _SHAPES.items():
        if any(word in text for word in words) and re.search(shape, text):
            return kind
    return "a secret" if redact(text) != text else None


def check_secrets(name: str, told: Any) -> None:
    """Raise NotFit if `told`, plain data of the example `name`, holds what looks like a secret."""
    if kind := find_secret(json.dumps(told, ensure_ascii=False)):
        raise NotFit(f"{name}: holds what looks like {kind}; withdraw it, and {_without(name)}")


def check_node(store: Store, name: str, revision: Revision) -> dict[str, str]:
    """The files of the node behind `revision`. Raises NotFit unless all is as it was measured."""
    found = blobs.get(store, revision.files)
    if revision.evaluation_id is None:
        if revision.status == "ok":
            raise _tampered(name, revision, "it counts as correct without an evaluation")
        return found
    stored = store.row(
        "SELECT candidate_key AS key, status, as_score FROM evaluations WHERE id = :evaluation",
        {"evaluation": revision.evaluation_id},
    )
    if stored is None:
        raise _tampered(name, revision, "its evaluation is gone")
    if stored["key"] != revision.files and not _same_program(store, found, revision.files, stored["key"]):
        raise _tampered(name, revision, "its evaluation is another candidate's")
    if stored["status"] != revision.status or revision.as_score not in (None, stored["as_score"]):
        raise _tampered(name, revision, "its status or AS is not that of its evaluation")
    figures = evaluations.get_evaluation(store, revision.evaluation_id, samples=False)
    whole = None if figures["es"] is None else aggregate({int(t): es for t, es in figures["es"].items()})
    if not _equal(whole, stored["as_score"]) or figures["status"] != stored["status"]:
        raise _tampered(name, revision, "the AS of its evaluation does not follow from its ES(t)")
    return found


def _same_program(store: Store, found: dict[str, str], key: str, measured: str) -> bool:
    """Whether the files `found`, of `key`, are the candidate `measured` but for comments and formatting."""
    return canonical_key(found, key) == canonical_key(blobs.get(store, measured), measured)


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_EQUAL)


def _tampered(name: str, revision: Revision, what: str) -> NotFit:
    return NotFit(
        f"{name}: node {revision.node} is not as it was measured ({what}); restore the database from a "
        f"backup, or {_without(name)}"
    )


def _without(name: str) -> str:
    return f"leave it out with --keep \"id != '{name}'\""
