"""Candidates that are the same program."""

from __future__ import annotations

import pytest
import tiny_search
from test_search import finish, open_tiny, store, task  # noqa: F401 (fixtures)

from passagent.evaluator.result import MANIFEST
from passagent.models.scripted import ScriptedModel, calling
from passagent.search.candidates import canonical_key
from passagent.store import episodes

PASS = '''"""A first try."""

import helper


def pattern(a, b):
    """What is found."""
    return torch.relu(a) * b


def fused(a, b):
    return helper.launch(a, b, scale(2))  # the launch
'''
HELPER = "def launch(a, b, n):\n    return n\n"


def files(first=PASS, helper=HELPER):
    return {"Fused.py": first, "helper.py": helper, MANIFEST: '["Fused"]'}


SAME = {
    "a comment and a docstring": files(PASS.replace("A first try", "Another").replace("the launch", "here")),
    "no docstring": files(PASS.replace('    """What is found."""\n', "")),
    "formatting": files(PASS.replace("(a, b, scale(2))", "(\n        a,\n        b, scale( 2 ),\n    )")),
}
OTHER = {
    "a number": files(PASS.replace("scale(2)", "scale(3)")),
    "a name": files(PASS.replace("def fused", "def fuse")),
    "an operator": files(PASS.replace("* b", "+ b")),
    "a string that is no docstring": files(PASS + '\nSOURCE = "int x;  // what for"\n'),
    "a helper": files(helper=HELPER.replace("return n", "return a")),
    "one file more": files() | {"more_still.py": "x = 1\n"},
}


@pytest.mark.parametrize("what", SAME)
def test_key_is_equal_where_only_text_for_people_differs(what):
    assert SAME[what] != files()
    assert canonical_key(SAME[what], "bytes") == canonical_key(files(), "bytes") != "bytes"


@pytest.mark.parametrize("what", OTHER)
def test_key_differs_for_another_program(what):
    assert canonical_key(OTHER[what], "bytes") != canonical_key(files(), "bytes")


def test_key_of_what_cannot_be_parsed_is_that_of_its_bytes():
    assert canonical_key(files("def f(:"), "bytes") == "bytes"


def scripted(*texts):
    """Each episode hands in the next of these sources."""
    left = list(texts)

    def reply(messages, tools):
        if sum(message["role"] == "assistant" for message in messages):
            return "Done."
        created = {"command": "create", "path": "Fused.py", "file_text": left.pop(0)}
        manifest = {"command": "create", "path": MANIFEST, "file_text": '["Fused"]'}
        return calling(("file_editor", created), ("file_editor", manifest), ("pass_evaluator", {}))

    return ScriptedModel(reply)


BODY = "\n".join(f"def f{i}(x):\n    return g{i}(x, {i}) * {i}" for i in range(60))


def told(store, run, number):  # noqa: F811
    found = episodes.conversation(store, tiny_search.episode_of(store, run.id, number).id)
    return next(m["content"] for m in found if m["role"] == "tool" and m["name"] == "pass_evaluator")


def test_repeated_program_is_answered_from_the_store(store, task):  # noqa: F811
    source = f'"""First."""\nWORDS = "one"\n{BODY}\n'
    model = scripted(
        source,
        source.replace("First", "Second").replace("    return", "    return  "),
        source.replace("g", "h"),
    )
    evaluator = tiny_search.FastEvaluator()
    session = open_tiny(store, task, model=model, evaluator=evaluator, islands=1, iters=3, policy="best_of_n")
    finish(session)
    run = session.run
    first, second = (tiny_search.nodes_of(store, run.id, number)[0] for number in (1, 2))
    assert len(evaluator.asked) == 2
    assert (second.repeat_of, second.evaluation_id, second.status) == (
        first.id, first.evaluation_id, first.status
    )  # fmt: skip
    assert f"this is the same program as node {first.id} ({first.status}, AS" in told(store, run, 2)
    assert "same program" not in told(store, run, 1) + told(store, run, 3)
    assert all(f"\nAS: {node.as_score:.4f}\nleft: " in text for text, node in [(told(store, run, 2), second)])

    # another run on the same task knows it, too, though of no node that it could name
    again = scripted(source.replace("First", "Third"))
    other = open_tiny(store, task, model=again, evaluator=evaluator, islands=1, iters=1)
    finish(other)
    assert len(evaluator.asked) == 2
    assert "same program" not in told(store, other.run, 1)
