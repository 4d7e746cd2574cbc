"""Experience for prompts: diagnosis of a candidate, hints that fit it, and the curated knowledge."""

from passagent.experience.diagnosis import Diagnosis, diagnose
from passagent.experience.hints import Hint, load_hints, retrieve
from passagent.experience.knowledge import Passage, read, search

__all__ = ["Diagnosis", "Hint", "Passage", "diagnose", "load_hints", "read", "retrieve", "search"]
