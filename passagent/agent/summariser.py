"""The summariser: a model writes one page of what a stagnating island has tried (KernelEvolve 3.2.1).

It sees the island's candidates, their diagnoses and failures, its intents and the best one's difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from passagent import resources
from passagent.agent.context import Attempt
from passagent.agent.prompt import attempt_line
from passagent.agent.tokens import cut_end
from passagent.config import Config
from passagent.errors import UsageError
from passagent.models import open_model, role_config
from passagent.models.types import Model, Reply

ROLE = "summariser"
"""Of its calls in the ledger."""
MAX_DIFF, MAX_CANDIDATES, MAX_INTENTS = 2_000, 4_000, 1_000
"""Tokens of what is shown."""
MAX_DIAGNOSIS = 300
"""Characters of what limits a candidate."""


@dataclass(frozen=True)
class Artefacts:
    """What an island has left behind."""

    operators: list[str]
    target: str
    """`cpu` or `cuda`."""
    stagnant: int
    """Episodes without a gain."""
    best_as: float | None
    candidates: list[tuple[Attempt, str]]
    """With the diagnosis of each, the newest last."""
    intents: list[str]
    difference: str
    """What the best candidate changed, as a diff."""
    page: str
    """What was written before; empty: nothing."""


def open_summariser(config: Config) -> Model | None:
    """The model that `roles.summariser` names; None if it names none. Raises UsageError."""
    if config.roles.summariser is None:
        return None
    if config.roles.summariser.name == "expert":
        raise UsageError("roles.summariser: the expert writes passes only; name another model")
    return open_model(role_config(config, ROLE))


def may_summarise(name: str) -> bool:
    """Whether the model of an episode is asked, where none is named: neither programs nor recordings are."""
    return name.startswith(("openai/", "anthropic/"))


async def ask(model: Model, artefacts: Artefacts, budget: int) -> tuple[Reply, str]:
    """The reply, and the page of at most `budget` tokens, empty if there is none. Raises as the model."""
    reply = await model.complete([{"role": "user", "content": prompt(artefacts, budget)}], [])
    return reply, cut_end(reply.message["content"].strip(), budget, "") if budget else ""


def prompt(artefacts: Artefacts, budget: int) -> str:
    """What the model is shown."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = resources.find("prompts/summariser.j2").read_text(encoding="utf-8")
    newest = [_line(attempt, diagnosis) for attempt, diagnosis in reversed(artefacts.candidates)]
    shown = cut_end("\n".join(newest), MAX_CANDIDATES, "").split("\n")
    return (
        environment.from_string(text)
        .render(
            operators=artefacts.operators,
            target=artefacts.target,
            stagnant=artefacts.stagnant,
            best_as=artefacts.best_as,
            page=artefacts.page,
            candidates="\n".join(reversed(shown)),
            intents=cut_end("\n".join(artefacts.intents), MAX_INTENTS, ""),
            difference=cut_end(artefacts.difference, MAX_DIFF, ""),
            words=max(1, budget * 2 // 3),
        )
        .strip()
    )


def _line(attempt: Attempt, diagnosis: str) -> str:
    told = " ".join(diagnosis.split())[:MAX_DIAGNOSIS]
    return f"- {attempt_line(attempt)}" + (f" [{told}]" if told else "")
