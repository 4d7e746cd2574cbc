"""What a policy is told of a task: the agent's own two opening messages, as one text."""

from __future__ import annotations

from passagent.agent.context import EpisodeContext
from passagent.agent.prompt import compose
from passagent.config import Config
from passagent.evaluator.fleet.opening import device_label, threads_of
from passagent.evaluator.target import target_of
from passagent.tasks import Task


def task_text(task: Task, config: Config, rules: bool = True, here: bool = True) -> str:
    """The rules of pass writing (unless not `rules`), then the task; a first draft in an empty directory.

    here: whether candidates are judged on this machine, so that its figures belong into the text. Raises
    UsageError for a device that is not on this machine.
    """
    context = EpisodeContext(
        task=task,
        target=target_of(config.evaluator),
        device_name=device_label(config.evaluator) if here else "",
        role="fusion",
        seed=0,
        threads=threads_of(config.evaluator),
        limits=config.agent,
    )
    texts = [message["content"] for message in compose(context)]
    return "\n\n".join(texts if rules else texts[1:])
