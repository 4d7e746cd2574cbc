"""Settings of what models are shown of what is known."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ExperienceConfig(BaseModel):
    """What models are shown of what is known, and where that is kept (docs/experience.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    library: str | None = None
    """Where runs keep what they found and learned: a file, or `off`; None: $PASSAGENT_LIBRARY, else
    library.db in the runs directory."""
    exclude: list[str] = []
    """Tasks, such as those of an evaluation: nothing of them is stored in the library or taken from it."""
    seeds: bool = True
    """A pass that is known for this very task is a seed of the run."""
    examples: int = Field(2, ge=0)
    """Passes of similar tasks that are shown to an island's first episode and to those that start from the
    task, but not to drafts."""
    learned: bool = True
    """Show hints that models wrote, but for a random fifth of the episodes, which show their worth."""
