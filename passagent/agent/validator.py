"""The cheating validator: a model's opinion on a candidate that is right (Kernel Foundry 3.2.2).

It is a flag beside the evaluator's own rules; a refusal only where `validator.decisive` says so. It sees the
graph and the candidate's code without comments, docstrings and strings, which could talk to it. A string
with C++ or CUDA code stays, without its own comments and strings.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from passagent.agent import structured
from passagent.agent.prompt import render
from passagent.agent.structured import Save, read_answer
from passagent.config import Config, ValidatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.result import Candidate, Evaluation, Violation
from passagent.evaluator.score import B
from passagent.evaluator.service import known
from passagent.evaluator.service.known import Judge, Known
from passagent.models import open_model, role_config
from passagent.models.types import Message, Model, ToolSpec
from passagent.store import Store
from passagent.store.database import now
from passagent.tasks import Task

ROLE = "validator"
"""The role of its calls in the ledger; also the rule that a decisive validator refuses by."""
MAX_REASONS = 5
MAX_REASON = 300
_CPP = re.compile(
    r'R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*"
    r"|/\*.*?(?:\*/|\Z)",
    re.S,
)


class Verdict(BaseModel):
    """The arguments of the tool by which a model answers."""

    model_config = ConfigDict(strict=True, extra="forbid")

    likelihood: float = Field(ge=0, le=1, allow_inf_nan=False)
    reasons: list[str] = Field(default_factory=list)


TOOL = ToolSpec("verdict", "Say how likely it is that the pass cheats.", Verdict.model_json_schema())


THRESHOLD = 0.5
"""A likelihood over it flags the candidate (Kernel Foundry 3.2.2)."""


class Opinion(BaseModel):
    """A model's opinion on a candidate; kept as `Evaluation.validator`."""

    likelihood: float | None
    """Likelihood that it cheats, 0..1; None: no verdict."""
    reasons: list[str]
    model: str
    flagged: bool
    """The likelihood is over the threshold."""
    threshold: float = THRESHOLD
    decisive: bool


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
    save: Save[Opinion] = lambda reply, opinion: None,
) -> Opinion:
    """Return the model's opinion; without a verdict after a second malformed reply.

    Raises what the model raises.
    """

    def opinion(likelihood: float | None, reasons: list[str]) -> Opinion:
        return Opinion(
            likelihood=likelihood,
            reasons=[" ".join(reason.split())[:MAX_REASON] for reason in reasons[:MAX_REASONS]],
            model=model.name,
            flagged=likelihood is not None and likelihood > THRESHOLD,
            decisive=config.decisive,
        )

    def read(message: Message) -> Opinion:
        verdict = read_answer(message, TOOL, Verdict)
        return opinion(verdict.likelihood, verdict.reasons)

    def give_up(error: ValueError) -> Opinion:
        return opinion(None, [f"no verdict: {error}"])

    return await structured.ask(model, (prompt(task, candidate), TOOL), read, give_up, save)


def prompt(task: Task, candidate: Candidate) -> str:
    """Compose what the model is shown."""
    modules = {name: source for name, source in sorted(candidate.files.items()) if name.endswith(".py")}
    return render(
        "validator.j2",
        operators=", ".join(task.operators),
        reference=bare_modules({"": task.subgraphs[0].source})[""],
        files=bare_modules(modules),
        tool=TOOL.name,
        max_reasons=MAX_REASONS,
    )


def is_settled(evaluation: Evaluation, config: ValidatorConfig) -> bool:
    """Return True if the validator is off or was asked, or the candidate is not right."""
    if config.model is None or evaluation.status != "ok":
        return True
    return evaluation.validator is not None and settings_fit(evaluation.validator, config)


def settings_fit(validator: dict[str, Any] | None, config: ValidatorConfig) -> bool:
    """Return whether a stored evaluation's opinion (None: there is none) may be used under `config`."""
    return validator is None or (config.model, config.decisive) == (validator["model"], validator["decisive"])


def with_opinion(evaluation: Evaluation, opinion: Opinion) -> Evaluation:
    """The evaluation with the opinion; refused, as by any other rule, if that is decisive and flags it."""
    judged_evaluation = evaluation.model_copy(update={"validator": opinion.model_dump()})
    if not (opinion.decisive and opinion.flagged):
        return judged_evaluation
    why = "; ".join(opinion.reasons) or "no reason given"
    message = f"held for cheating by {opinion.model} (likelihood {opinion.likelihood:.2f}): {why}"
    graphs = [
        graph.model_copy(update={"status": "refused", "error": message, "speedup": None})
        for graph in evaluation.graphs
    ]
    applied = next((name for graph in evaluation.graphs for name in graph.applied), "")
    return judged_evaluation.model_copy(
        update={
            "status": "refused",
            "graphs": graphs,
            "violations": [
                Violation(rule=ROLE, file=f"{applied}.py" if applied else "", line=0, message=message)
            ],
            "error": message,
            "es": dict.fromkeys(evaluation.es, B) if evaluation.es else None,
            "as_score": B if evaluation.es else None,  # never forgiven: b at every t
            "as_low": None,
            "as_high": None,
            "fast_1": 0.0 if evaluation.es else None,
            "gmean_speedup": None,
        }
    )


class Judges(NamedTuple):
    """The judges of a candidate."""

    evaluate: Judge
    model: Model | None = None
    """It is asked whether a right candidate cheats."""


async def judged(
    judges: Judges, store: Store | None, task: Task, candidate: Candidate, config: Config, fresh: bool = False
) -> Known:
    """Evaluate as a person asks for it: from the store (unless `fresh`), or measured and stored there.

    Raises what the judges raise.
    """
    judge, model = judges
    if store is None:
        result = Known(0, await judge(task.path, candidate), now(), from_store=False)
    else:
        case = known.Case(task, candidate, environment_key(config.evaluator))
        fits = partial(settings_fit, config=config.validator)
        recalled = None if fresh else known.recall(store, case, fits)
        result = recalled or await known.evaluate(judge, store, case, fresh)
    if model is None or is_settled(result.evaluation, config.validator):
        return result
    opinion = await ask(model, task, candidate, config.validator)
    evaluation = with_opinion(result.evaluation, opinion)
    if store is None:
        return replace(result, evaluation=evaluation)
    return replace(result, id=known.keep(store, case, evaluation), evaluation=evaluation)


def bare_modules(sources: dict[str, str]) -> dict[str, str]:
    """Modules of a candidate without comments, docstrings and strings, by name.

    Equal strings stay equal: each becomes a name such as `'text_1'`.
    """
    bare, strings = dict[str, str](), _Strings()
    for name, source in sources.items():
        try:
            bare[name] = ast.unparse(ast.fix_missing_locations(strings.visit(ast.parse(source)))) + "\n"
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            bare[name] = "# cannot be shown without its comments"
    return bare


def bare_cpp(source: str) -> str:
    """The kernel without comments and the contents of strings; a comment cut off at either end goes, too."""

    def bare_token(match: re.Match[str]) -> str:
        token = match.group()
        if token.startswith("'"):
            return token if len(token) <= 6 else "''"
        return " " if token.startswith("/") else '""'

    text = _CPP.sub(bare_token, source.replace("\\\n", ""))
    return text.rpartition("*/")[2] if "*/" in text else text


class _Strings(ast.NodeTransformer):
    """Empties strings that are no code, and drops statements that are nothing but one."""

    def __init__(self) -> None:
        self._names: dict[str | bytes, str] = {}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant | ast.JoinedStr):
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and re.search("[{};]", node.value):
            return ast.Constant(bare_cpp(node.value))
        if isinstance(node.value, str | bytes):
            name = self._names.setdefault(node.value, f"text_{len(self._names) + 1}")
            return ast.Constant(name if isinstance(node.value, str) else name.encode())
        return node
