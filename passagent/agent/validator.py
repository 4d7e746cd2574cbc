"""The cheating validator: a model's opinion on a candidate that is right (Kernel Foundry 3.2.2).

It is a flag beside the evaluator's own rules; a refusal only where `validator.decisive` says so. It sees the
graph and the candidate's code without anything that could talk to it (bare.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel

from passagent.agent.bare import bare_modules
from passagent.agent.structured import again, braced
from passagent.config import Config, EvaluatorConfig, ValidatorConfig
from passagent.errors import UsageError
from passagent.evaluator.result import Candidate, Evaluation, Violation
from passagent.models import open_model, role_config
from passagent.models.types import Message, Model, Reply, ToolSpec
from passagent.system import resources
from passagent.tasks import Task

ROLE = "validator"
"""Of its calls in the ledger; also the rule that a decisive validator refuses by."""
TRIES = 2
MAX_REASONS = 5
MAX_REASON = 300
TOOL = ToolSpec(
    "verdict",
    "Say how likely it is that the pass cheats.",
    {
        "type": "object",
        "properties": {
            "likelihood": {"type": "number", "minimum": 0, "maximum": 1},
            "reasons": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_REASONS},
        },
        "required": ["likelihood", "reasons"],
        "additionalProperties": False,
    },
)
AGAIN = "That was no verdict: {reason}. Call `verdict` once, with a likelihood from 0 to 1 and a reasons."


class Opinion(BaseModel):
    """What a model holds of a candidate; kept as `Evaluation.validator`."""

    likelihood: float | None
    """That it cheats, 0..1; None: no verdict."""
    reasons: list[str]
    model: str
    flagged: bool
    """The likelihood is over the threshold."""
    threshold: float
    decisive: bool


Save = Callable[[Reply, Opinion | None], None]
"""Called with each reply, and the opinion once there is one; returns when both are safe."""


def open_validator(config: Config) -> Model | None:
    """The model to ask, None if `validator.model` names none. Raises UsageError."""
    if config.validator.model is None:
        return None
    if config.validator.model == "expert":
        raise UsageError("validator.model: the expert writes passes only; name another model")
    return open_model(role_config(config, ROLE))


async def ask(
    model: Model,
    task: Task,
    candidate: Candidate,
    config: ValidatorConfig,
    save: Save = lambda reply, opinion: None,
) -> Opinion:
    """The model's opinion. A malformed reply is asked for once again; then there is no verdict.

    Raises what the model raises.
    """
    messages: list[Message] = [{"role": "user", "content": prompt(task, candidate)}]
    reason = ""
    for attempt in range(TRIES):
        reply = await model.complete(messages, [TOOL])
        try:
            likelihood, reasons = read(reply.message)
        except ValueError as error:
            reason = str(error)
            messages = [*messages, reply.message, *again(reply.message, AGAIN.format(reason=reason))]
            if attempt < TRIES - 1:
                save(reply, None)
        else:
            opinion = _opinion(likelihood, reasons, model.name, config)
            save(reply, opinion)
            return opinion
    opinion = _opinion(None, [f"no verdict: {reason}"], model.name, config)
    save(reply, opinion)
    return opinion


def prompt(task: Task, candidate: Candidate) -> str:
    """What the model is shown."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = resources.find("prompts/validator.j2").read_text(encoding="utf-8")
    modules = {name: source for name, source in sorted(candidate.files.items()) if name.endswith(".py")}
    return (
        environment.from_string(text)
        .render(
            operators=", ".join(task.operators),
            reference=bare_modules({"": task.subgraphs[0].source})[""],
            files=bare_modules(modules),
            tool=TOOL.name,
            max_reasons=MAX_REASONS,
        )
        .strip()
    )


def read(message: Message) -> tuple[float, list[str]]:
    """Likelihood and reasons of a reply, from its tool call or else its text. Raises ValueError."""
    calls = [call for call in message["tool_calls"] if call["name"] == TOOL.name]
    text = calls[0]["arguments"] if calls else braced(message["content"])
    try:
        verdict = json.loads(text)
    except ValueError:
        raise ValueError("it holds no valid JSON object") from None
    if not isinstance(verdict, dict):
        raise ValueError("it holds no JSON object")
    likelihood, reasons = verdict.get("likelihood"), verdict.get("reasons", [])
    if isinstance(likelihood, bool) or not isinstance(likelihood, int | float) or not 0 <= likelihood <= 1:
        raise ValueError("likelihood is no number from 0 to 1")
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise ValueError("reasons is no list of texts")
    return float(likelihood), [" ".join(reason.split())[:MAX_REASON] for reason in reasons[:MAX_REASONS]]


def is_settled(evaluation: Evaluation, config: ValidatorConfig) -> bool:
    """Whether nothing is to be asked: the validator is off or was asked, or the candidate is not right."""
    if config.model is None or evaluation.status != "ok":
        return True
    return evaluation.validator is not None and settings_fit(evaluation.validator, config)


def settings_fit(validator: dict[str, Any] | None, config: ValidatorConfig) -> bool:
    """Whether a stored evaluation's opinion (None: there is none) may be used under `config`."""
    if validator is None:
        return True
    return config.model_dump(include={"model", "threshold", "decisive"}) == {
        key: validator[key] for key in ("model", "threshold", "decisive")
    }


def with_opinion(evaluation: Evaluation, opinion: Opinion, config: EvaluatorConfig) -> Evaluation:
    """The evaluation with the opinion; refused, as by any other rule, if that is decisive and flags it."""
    kept = evaluation.model_copy(update={"validator": opinion.model_dump()})
    if not (opinion.decisive and opinion.flagged):
        return kept
    why = "; ".join(opinion.reasons) or "no reason given"
    message = f"held for cheating by {opinion.model} (likelihood {opinion.likelihood:.2f}): {why}"
    graphs = [
        graph.model_copy(update={"status": "refused", "error": message, "speedup": None})
        for graph in evaluation.graphs
    ]
    applied = next((name for graph in evaluation.graphs for name in graph.applied), "")
    return kept.model_copy(
        update={
            "status": "refused",
            "graphs": graphs,
            "violations": [
                Violation(rule=ROLE, file=f"{applied}.py" if applied else "", line=0, message=message)
            ],
            "error": message,
            "es": dict.fromkeys(evaluation.es, config.b) if evaluation.es else None,
            "as_score": config.b if evaluation.es else None,  # never forgiven: b at every t
            "as_low": None,
            "as_high": None,
            "fast_1": 0.0 if evaluation.es else None,
            "gmean_speedup": None,
        }
    )


def opinion_line(validator: dict[str, Any]) -> str:
    """`Evaluation.validator` in a line, for people and for the agent."""
    opinion = Opinion.model_validate(validator)
    why = "; ".join(opinion.reasons)
    if opinion.likelihood is None:
        return f"validator {opinion.model}: {why}"
    meaning = "it is refused" if opinion.decisive else "a flag, it changes no score"
    flag = f" (over {opinion.threshold:g}: {meaning})" if opinion.flagged else ""
    said = f"likelihood of cheating {opinion.likelihood:.2f}{flag}"
    return f"validator {opinion.model}: {said}{': ' if why else ''}{why}"


def _opinion(likelihood: float | None, reasons: list[str], model: str, config: ValidatorConfig) -> Opinion:
    return Opinion(
        likelihood=likelihood,
        reasons=reasons,
        model=model,
        flagged=likelihood is not None and likelihood > config.threshold,
        threshold=config.threshold,
        decisive=config.decisive,
    )
