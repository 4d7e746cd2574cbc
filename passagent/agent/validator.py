"""The cheating validator: a model's opinion on a candidate that is right (Kernel Foundry 3.2.2).

It is a flag beside the evaluator's own rules; a refusal only where `validator.decisive` says so. It sees the
graph and the candidate's code without anything that could talk to it: comments, docstrings and strings. The
sources of C++ and CUDA kernels are strings, too: they stay, without their own comments and strings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from passagent.agent import structured
from passagent.agent.structured import Question, read_object, render
from passagent.config import Config, EvaluatorConfig, ValidatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.result import Candidate, Evaluation, Violation
from passagent.evaluator.score import B
from passagent.evaluator.service import known
from passagent.evaluator.service.known import Judge, Known
from passagent.models import open_model, role_config
from passagent.models.types import Message, Model, Reply, ToolSpec
from passagent.store import Store
from passagent.store.database import now
from passagent.tasks import Task

ROLE = "validator"
"""The role of its calls in the ledger; also the rule that a decisive validator refuses by."""
MAX_REASONS = 5
MAX_REASON = 300
_KERNEL_MAKERS = {"cpp_kernel", "cuda_kernel"}
_CPP = re.compile(
    r'R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*"
    r"|/\*.*?(?:\*/|\Z)",
    re.S,
)
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


THRESHOLD = 0.5
"""A likelihood over it flags the candidate (Kernel Foundry 3.2.2)."""


class Opinion(BaseModel):
    """A model's opinion on a candidate; kept as `Evaluation.validator`."""

    likelihood: float | None
    """Likelihood that it cheats, 0..1; None: no verdict."""
    reasons: list[str]
    model: str
    flagged: bool
    """The likelihood is over THRESHOLD."""
    decisive: bool

    @classmethod
    def of(cls, likelihood: float | None, reasons: list[str], model: str, config: ValidatorConfig) -> Opinion:
        """Return what `model` holds, under `config`."""
        return cls(
            likelihood=likelihood,
            reasons=reasons,
            model=model,
            flagged=likelihood is not None and likelihood > THRESHOLD,
            decisive=config.decisive,
        )


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
    """Return the model's opinion; without a verdict after a second malformed reply.

    Raises what the model raises.
    """

    def answer(likelihood: float | None, reasons: list[str]) -> Opinion:
        return Opinion.of(likelihood, reasons, model.name, config)

    question = Question(
        prompt(task, candidate),
        TOOL,
        AGAIN,
        lambda message: answer(*read(message)),
        lambda reason: answer(None, [f"no verdict: {reason}"]),
    )
    return await structured.ask(model, question, save)


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


def read(message: Message) -> tuple[float, list[str]]:
    """Read likelihood and reasons of a reply, from its tool call or else its text. Raises ValueError."""
    verdict = read_object(message, TOOL)
    likelihood, reasons = verdict.get("likelihood"), verdict.get("reasons", [])
    if isinstance(likelihood, bool) or not isinstance(likelihood, int | float) or not 0 <= likelihood <= 1:
        raise ValueError("likelihood is no number from 0 to 1")
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise ValueError("reasons is no list of texts")
    return float(likelihood), [" ".join(reason.split())[:MAX_REASON] for reason in reasons[:MAX_REASONS]]


def is_settled(evaluation: Evaluation, config: ValidatorConfig) -> bool:
    """Return True if the validator is off or was asked, or the candidate is not right."""
    if config.model is None or evaluation.status != "ok":
        return True
    return evaluation.validator is not None and settings_fit(evaluation.validator, config)


def settings_fit(validator: dict[str, Any] | None, config: ValidatorConfig) -> bool:
    """Return whether a stored evaluation's opinion (None: there is none) may be used under `config`."""
    if validator is None:
        return True
    return (config.model, config.decisive) == (validator["model"], validator["decisive"])


def with_opinion(evaluation: Evaluation, opinion: Opinion, config: EvaluatorConfig) -> Evaluation:
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


def opinion_line(validator: dict[str, Any]) -> str:
    """`Evaluation.validator` in a line, for people and for the agent."""
    opinion = Opinion.model_validate(validator)
    why = "; ".join(opinion.reasons)
    if opinion.likelihood is None:
        return f"validator {opinion.model}: {why}"
    meaning = "it is refused" if opinion.decisive else "a flag, it changes no score"
    flag = f" (over {THRESHOLD:g}: {meaning})" if opinion.flagged else ""
    likelihood = f"likelihood of cheating {opinion.likelihood:.2f}{flag}"
    return f"validator {opinion.model}: {likelihood}{': ' if why else ''}{why}"


class Judges(NamedTuple):
    """The judges of a candidate."""

    evaluate: Judge
    model: Model | None = None
    """It is asked whether a right candidate cheats."""


async def judged(
    judges: Judges,
    store: Store | None,
    task: Task,
    candidate: Candidate,
    config: Config,
    fresh: bool = False,
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
    evaluation = with_opinion(result.evaluation, opinion, config.evaluator)
    if store is None:
        return replace(result, evaluation=evaluation)
    return replace(result, id=known.keep(store, case, evaluation), evaluation=evaluation)


def bare_modules(sources: dict[str, str]) -> dict[str, str]:
    """Modules of a candidate without comments, docstrings and strings, by name.

    Equal strings stay equal: each becomes a name such as `'text_1'`.
    """
    trees: dict[str, ast.Module] = {}
    bare: dict[str, str] = {}
    for name, source in sources.items():
        try:
            trees[name] = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            bare[name] = "# not Python"
    strings = _Strings(_kernel_parts(list(trees.values())))
    for name, tree in trees.items():
        try:
            bare[name] = ast.unparse(ast.fix_missing_locations(strings.visit(tree))) + "\n"
        except (ValueError, RecursionError):  # nested too deeply, or an f-string that has no other form
            bare[name] = "# cannot be printed without its comments"
    return {name: bare[name] for name in sources}


def bare_cpp(source: str) -> str:
    """The kernel without comments and the contents of strings; a comment cut off at either end goes, too."""
    text = _CPP.sub(_bare_token, source.replace("\\\n", ""))
    return text.rpartition("*/")[2] if "*/" in text else text


def _bare_token(match: re.Match[str]) -> str:
    token = match.group()
    if token.startswith("/"):
        return " "
    if token.startswith("'"):
        return token if len(token) <= 6 else "''"
    return '""'


def _kernel_parts(trees: list[ast.Module]) -> set[ast.AST]:
    """Every node inside the source (or name) that is given to a kernel's maker, through variables, too."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    makers, assigned = set(_KERNEL_MAKERS), dict[str, list[ast.expr]]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            makers |= {alias.asname for alias in node.names if alias.name in makers and alias.asname}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    parts: set[ast.AST] = set()
    todo: list[ast.AST] = [
        argument
        for node in nodes
        if isinstance(node, ast.Call) and _name(node.func) in makers
        for argument in [*node.args[:2], *(word.value for word in node.keywords)]
    ]
    while todo:
        for node in ast.walk(todo.pop()):
            if node not in parts:
                parts.add(node)
                todo += assigned.get(_name(node), [])
    return parts


def _name(node: ast.AST) -> str:
    """`name` of `name` and of `module.name`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class _Strings(ast.NodeTransformer):
    """Empties strings, and drops statements that are nothing but one."""

    def __init__(self, kernel_parts: set[ast.AST]) -> None:
        self._kernel_parts = kernel_parts
        self._names: dict[str | bytes, str] = {}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant | ast.JoinedStr):
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node in self._kernel_parts:
            return ast.Constant(bare_cpp(node.value))
        if isinstance(node.value, str | bytes):
            name = self._names.setdefault(node.value, f"text_{len(self._names) + 1}")
            return ast.Constant(name if isinstance(node.value, str) else name.encode())
        return node
