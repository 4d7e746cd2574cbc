"""The expert's advice to itself: a gain becomes a hint, and a hint moves what it tries first."""

import asyncio
import json
from dataclasses import replace

from test_distiller import improvement, side  # noqa: F401
from test_search import store, task  # noqa: F401

from passagent.agent.distiller import ask, open_distiller
from passagent.config import load_config
from passagent.experience.hint_trials import Learned
from passagent.expert.advice import advised
from passagent.expert.choices import default
from passagent.expert.expert_model import choose, read


def with_plan(score: float, **numbers):
    plan = replace(default("cpu"), **numbers)
    files = {"FuseRelu.py": f'"""relu; {plan.note("cpu")} [plan: {plan.json()}]"""\n'}
    return side(score, files)


def test_what_gained_becomes_a_hint_and_then_a_vote(improvement):  # noqa: F811
    teacher = open_distiller(load_config(None, {"roles.hint_distiller": {"name": "expert"}}))
    better = replace(improvement, before=with_plan(1.2), after=with_plan(1.8, keep=12, grain=4096))
    lesson = asyncio.run(ask(teacher, better))
    assert "grain=4096, keep=12" in lesson.hint.advice and "start" in lesson.hint.trigger
    again = replace(better, known=(Learned(lesson.hint),), hint_id="another")
    lesson = asyncio.run(ask(teacher, again))
    assert lesson.hint is None and lesson.votes == {better.hint_id: True}
    same = replace(better, after=with_plan(1.9))
    assert asyncio.run(ask(teacher, same)) is None, "no number is another one"


PROMPT = """Target: cpu
Episode seed: 3
Task directory: {task}

{hints}
# Your part
Your role is fusion
"""


def first_plan(task_path, hints: str):
    message = {"role": "user", "content": PROMPT.format(task=task_path, hints=hints)}
    return choose(read([message]))


def test_a_hint_moves_the_first_draft(task):  # noqa: F811
    noted = (
        "# Hints from earlier work\n- [run-1]\n  > take keep=12, grain=4096, block=7, lanes=4\n# On\nkeep=0"
    )
    assert advised(noted, "cpu") == {"keep": 12, "grain": 4096}, "numbers that the target has"
    usual = first_plan(task.path, "")
    moved = first_plan(task.path, "# Hints from earlier work\n- [run-1]\n  > take keep=12, grain=4096\n")
    assert usual == default("cpu") and moved == replace(usual, keep=12, grain=4096)
    assert first_plan(task.path, "take keep=12 elsewhere") == usual
    assert json.loads(usual.json())["keep"] == 4
