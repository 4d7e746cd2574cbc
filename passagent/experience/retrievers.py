"""Who searches the knowledge: the curated documents (knowledge.py), or a class that the settings name."""

from __future__ import annotations

import functools

from passagent import extend
from passagent.experience import knowledge


@functools.cache
def retriever_of(path: str | None) -> extend.Retriever:
    """What `experience.retriever` names, made once a process. Raises UsageError if it does not load."""
    if path is None:
        return knowledge
    made: extend.Retriever = extend.make(path, "experience.retriever")
    return made
