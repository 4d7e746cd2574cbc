"""An episode of pass writing as a trainer's environment: the agent's own tools, and a reward.

Its public methods are the tools (TRL's `environment_factory` takes every one of them), with the names and
arguments that `passagent.agent.toolbox` gives a model: what is learned here is used unchanged in a search.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Literal

from passagent.agent import toolbox
from passagent.agent.episode import answer
from passagent.agent.observe import observation, verdict
from passagent.agent.prompt import compose
from passagent.agent.tool_specs import Tool, ToolAnswer
from passagent.agent.toolbox import SPECS
from passagent.config import Config, load_config
from passagent.data.rl.reward import SharedEvaluator, reward_of, shared
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.fleet.opening import device_label
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.target import target_of
from passagent.models.types import ToolSpec
from passagent.search.candidates import profiled
from passagent.search.episode_context import task_context
from passagent.tasks import Task, load_task

_KINDS: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "array": list[int]}
"""The Python types of arguments, by their types in a JSON schema."""


class PassEnv:
    """One episode at a time: `reset`, tool calls, then `reward`.

    Reward. The AS of the best candidate evaluated in the episode, rounded to what its measurement can tell
    (passagent.data.rl.reward); 0 if none was evaluated. A wrong candidate has the AS that the score gives it.

    Refused. A candidate that breaks an integrity rule sets `refused`, and the reward is 0 from then on,
    whatever was good before or comes after: cheating never pays. What gives no plan counts, too;
    the tool `check` reports these beforehand and does not count. A refusal that rests on a measurement must
    repeat itself to count.

    Faults. What the machine or the task fails is not the policy's: the tool raises, `fault` says what it was,
    and the reward is None. TRL leaves out such an episode: None becomes NaN, its advantage is 0, and it does
    not count in its group's mean. After three evaluations in a row that the machine failed, `reset` raises.
    """

    refused: bool
    """A candidate of this episode was refused."""
    fault: str | None
    """The fault of the machine or the task in this episode, in a line."""
    best_files: dict[str, str]
    """The files of the best candidate so far, name to text; empty if there is none."""
    best: Evaluation | None
    """Its evaluation."""
    file_editor: Callable[..., str]
    check: Callable[..., str]
    pass_evaluator: Callable[..., str]
    search_knowledge: Callable[..., str]
    profile: Callable[..., str]
    """The tools, made of the agent's own schemas (see `_method`)."""

    def __init__(
        self,
        device: str = "cpu",
        config: str | None = None,
        settings: dict[str, Any] | None = None,
        rules: bool = True,
        runs_dir: str | None = "runs",
    ) -> None:
        """Everything has a default: use functools.partial to set something. Raises UsageError.

        Args:
            device: Where candidates are measured, as `--device` of the commands.
            config: A preset or YAML file, as `--config`.
            settings: Single settings, such as `{"agent.max_evaluations": 4}`, as `--set`.
            rules: Whether `reset` begins with the rules of pass writing (the agent's system message).
            runs_dir: Where evaluations are kept and found again, as `--runs-dir`; None: nowhere.
        """
        self._config = load_config(config, {**(settings or {}), "evaluator.device": device})
        self._rules, self._runs_dir = rules, runs_dir
        self._tools: dict[str, Tool] = {}
        self._clear()

    def _clear(self) -> None:
        self.refused, self.fault = False, None
        self.best, self.best_files = None, {}
        self._calls = self._evaluations = 0
        self._seen: dict[str, Evaluation] = {}

    def reset(self, **row: Any) -> str:
        """Begin an episode on the task that `row["task"]` names: a path or `example:NAME`.

        The row's other columns are ignored. Returns the text that the model is to see. Raises UsageError and
        TaskError for a row without a usable task, and InfrastructureError where the machine has failed too
        often to go on.
        """
        if not isinstance(row.get("task"), str):
            raise UsageError("the row has no column 'task'; it holds a task's path or example:NAME")
        self._clear()
        evaluator = shared(self._config.evaluator, self._runs_dir)
        evaluator.check()
        task = load_task(row["task"])
        self._evaluator = evaluator
        self._tools = self._open_tools(task, evaluator)
        return task_text(task, self._config, self._rules)

    @property
    def reward(self) -> float | None:
        """The reward, as the class explains it; None: a fault that is not the policy's."""
        if self.refused:
            return 0.0
        if self.fault is not None:
            return None
        return 0.0 if self.best is None else reward_of(self.best)

    def get_reward(self) -> float | None:
        """`reward`, as TRL asks for it; no tool."""
        return self.reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return a tool's answer, or the model's mistake in words. Raises what is not the policy's fault."""
        if not self._tools:
            raise UsageError("reset has to come before the first tool call")
        self._calls += 1
        call = {"id": f"call_{self._calls}", "name": name, "arguments": json.dumps(arguments)}
        limit = self._config.agent.max_evaluations
        may_evaluate = self._evaluations < limit
        try:
            result = self._evaluator.run(answer(call, self._tools, False, may_evaluate))
        except PassagentError as error:
            self.fault = str(error)
            raise
        self._evaluations += result.data.get("evaluation", {}).get("is_run", False)
        return f"{result.text}\nleft: {limit - self._evaluations} of {limit} evaluations"

    def _open_tools(self, task: Task, evaluator: SharedEvaluator) -> dict[str, Tool]:
        """The agent's tools on an empty directory."""
        config = self._config.evaluator

        async def submit(files: dict[str, str], call_id: str) -> ToolAnswer:
            candidate = Candidate(files)
            evaluation = self._seen.get(candidate.key) or await evaluator.confirmed(task, candidate)
            self._seen[candidate.key] = evaluation  # measuring the same files until luck helps gains nothing
            before = self.best.as_score if self.best and self.best.status == "ok" else None
            self._take(evaluation, files)
            text = observation(evaluation, best_as=before, files=files)
            return ToolAnswer(text, {"evaluation": verdict(evaluation)})

        async def outline(files: dict[str, str]) -> Evaluation | list[str]:
            return await evaluator.outline(task, Candidate(files))

        async def limits(files: dict[str, str], deep: bool) -> str:
            candidate = Candidate(files)
            return (await profiled(task, candidate, self._seen.get(candidate.key), config, deep)).text()

        services = toolbox.Services(submit, outline, limits)
        opened = toolbox.open_tools(list(SPECS), task, {}, target_of(config), services)
        return {tool.spec.name: tool for tool in opened}

    def _take(self, evaluation: Evaluation, files: dict[str, str]) -> None:
        """Remember what counts of an evaluated candidate."""
        if evaluation.status == "refused":
            self.refused = True
            return
        if evaluation.as_score is None:
            return
        if self.best is None or reward_of(evaluation) > reward_of(self.best):
            self.best, self.best_files = evaluation, files


def _method(spec: ToolSpec) -> Callable[..., str]:
    """Make a tool a method, with the annotations and the docstring that a trainer reads its schema from."""
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    lines = [spec.description, "", "Args:"]
    for name, schema in spec.parameters["properties"].items():
        is_required = name in spec.parameters["required"]
        kind = Literal[tuple(schema["enum"])] if "enum" in schema else _KINDS[schema["type"]]
        parameters.append(
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if is_required else None,
                annotation=kind if is_required else kind | None,
            )
        )
        lines.append(f"    {name}: {schema.get('description') or ', '.join(schema['enum'])}")
    signature = Signature(parameters, return_annotation=str)

    def call(*values: Any, **arguments: Any) -> str:
        bound = signature.bind(*values, **arguments).arguments
        answer: str = bound.pop("self")._call(spec.name, bound)
        return answer

    call.__name__, call.__qualname__ = spec.name, f"PassEnv.{spec.name}"
    call.__doc__ = "\n".join([*lines, "", "Returns:", "    The tool's answer."])
    call.__annotations__ = {p.name: p.annotation for p in parameters[1:]} | {"return": str}
    vars(call)["__signature__"] = signature
    return call


for _spec in SPECS.values():
    setattr(PassEnv, _spec.name, _method(_spec))


def task_text(task: Task, config: Config, rules: bool = True, here: bool = True) -> str:
    """Write the rules of pass writing (where `rules`), then the task: a first draft in an empty directory.

    The text is the agent's own two opening messages.

    here: whether candidates are judged on this machine, so that its figures belong into the text. Raises
    UsageError for a device that is not on this machine.
    """
    context = task_context(task, config, device_label(config.evaluator) if here else "")
    texts = [message["content"] for message in compose(context)]
    return "\n\n".join(texts if rules else texts[1:])
