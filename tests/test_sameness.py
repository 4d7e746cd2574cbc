"""Candidates that are the same, nearly the same, or of the same kind."""

from __future__ import annotations

import pytest
import tiny
import tiny_search
from test_search import finish, open_tiny, store, task  # noqa: F401 (fixtures)

from passagent.evaluator.result import MANIFEST
from passagent.models.scripted import ScriptedModel, calling
from passagent.search.behaviour import behaviour_of
from passagent.search.canonical import canonical_key
from passagent.search.similarity import similarity, sketch_of
from passagent.store import episodes

PASS = '''"""A first try."""

import helper
from pass_dir.more import scale


def pattern(a, b):
    """What is found."""
    return torch.relu(a) * b


def fused(a, b):
    return helper.launch(a, b, scale(2))  # the launch
'''
HELPER = "def launch(a, b, n):\n    return n\n"
MORE = "def scale(x):\n    return x * 2\n"


def files(first=PASS, helper=HELPER, more=MORE, names=("Fused", "helper", "more"), manifest=None):
    one, two, three = names
    return {
        f"{one}.py": first,
        f"{two}.py": helper,
        f"{three}.py": more,
        MANIFEST: manifest or f'["{one}"]',
    }


def key(candidate):
    return canonical_key(candidate, str(sorted(candidate.items())))


SAME = {
    "a comment and a docstring": files(PASS.replace("A first try", "Another").replace("the launch", "here")),
    "no docstring": files(PASS.replace('    """What is found."""\n', "")),
    "formatting": files(PASS.replace("(a, b, scale(2))", "(\n        a,\n        b, scale( 2 ),\n    )")),
    "the manifest's spaces": files(manifest='[\n  "Fused"\n]\n'),
    "names of files": files(
        PASS.replace("import helper", "import aux").replace("helper.launch", "aux.launch")
        .replace("pass_dir.more", "pass_dir.other"),
        names=("Other", "aux", "other"),
    ),
    "how a helper is imported": files(PASS.replace("pass_dir.more", "more")),
}  # fmt: skip
OTHER = {
    "a number": files(PASS.replace("scale(2)", "scale(3)")),
    "a name": files(PASS.replace("def fused", "def fuse")),
    "an operator": files(PASS.replace("* b", "+ b")),
    "a helper": files(more=MORE.replace("2", "3")),
    "another helper's function": files(PASS.replace("helper.launch", "helper.start")),
    "helpers exchanged": files(helper=MORE, more=HELPER),
    "one file more": files() | {"more_still.py": "x = 1\n"},
    "a name with two meanings": files(PASS.replace("def fused(a, b)", "def fused(a, helper)")),
}


@pytest.mark.parametrize("what", SAME)
def test_the_same_program(what):
    assert SAME[what] != files()
    assert key(SAME[what]) == key(files())


@pytest.mark.parametrize("what", OTHER)
def test_another_program(what):
    assert key(OTHER[what]) != key(files())


def test_two_meanings_of_a_name_are_not_confused():
    """`helper` as a parameter and as a module: renaming the file makes another program of it."""
    shadowed = PASS.replace("def fused(a, b)", "def fused(a, helper)")
    other = shadowed.replace("import helper", "import aux").replace("    return helper", "    return aux")
    assert key(files(shadowed)) != key(files(other, names=("Fused", "aux", "more")))


def test_what_cannot_be_parsed_is_known_by_its_bytes():
    assert canonical_key(files("def f(:"), "bytes") == "bytes"
    assert canonical_key(files(manifest="[1, 2"), "bytes") == "bytes"
    assert behaviour_of(files("def f(:")) is None


def test_behaviour_is_region_kernels_and_language():
    base = tiny.candidate().files
    region, kernels, language = behaviour_of(base).split()
    assert (kernels, language) == ("1", "c++")
    tuned = {name: text.replace("1.0f + std", "1.00f + std") for name, text in base.items()}
    assert behaviour_of(tuned) == behaviour_of(base) and tuned != base
    smaller = {name: text.replace("* b + 1.0\n", "* b\n", 1) for name, text in base.items()}
    assert behaviour_of(smaller).split()[0] != region
    triton = "@triton.jit\ndef k(x):\n    pass\n\n@triton.jit(debug=True)\ndef l(x):\n    pass\n"
    both = base | {"helper.py": triton}
    assert behaviour_of(both) == f"{region} 3 c+++triton"
    cuda = base | {"Fused.py": base["Fused.py"].replace("cpp_kernel(", "cuda_kernel(")}
    assert behaviour_of(cuda) == f"{region} 1 cuda"


def test_similarity_follows_what_is_shared():
    lines = [f"value_{i} = compute({i}, offset_{i % 7}) + {i * i}" for i in range(120)]
    whole = sketch_of({"a.py": "\n".join(lines)})
    assert similarity(whole, whole) == 1.0
    assert similarity(whole, sketch_of({"a.py": "\n".join([*lines[:60], "# a note", *lines[60:]])})) == 1.0
    changed = sketch_of({"a.py": "\n".join([*lines[:118], "z = 1", "y = 2"])})
    half = sketch_of({"a.py": "\n".join([*lines[:60], *(line.replace("v", "w") for line in lines[60:])])})
    nothing = sketch_of({"a.py": "\n".join(f"other[{i}] = -{i}" for i in range(120))})
    assert similarity(whole, changed) > 0.9 > similarity(whole, half) > 0.15 > similarity(whole, nothing)
    assert len(whole) == 256
    assert similarity(sketch_of({}), sketch_of({})) == 1.0


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


def test_a_double_is_not_evaluated_and_the_model_is_told(store, task):  # noqa: F811
    source = f'"""First."""\nWORDS = "one"\n{BODY}\n'
    model = scripted(
        source,
        source.replace("First", "Second").replace("    return", "    return  "),
        source.replace("f59(x)", "f59(y)"),
        source.replace("g", "h"),
    )
    evaluator = tiny_search.FastEvaluator()
    session = open_tiny(store, task, model=model, evaluator=evaluator, islands=1, iters=4, policy="best_of_n")
    finish(session)
    run = session.run
    first, second = (tiny_search.nodes_of(store, run.id, number)[0] for number in (1, 2))
    assert len(evaluator.asked) == 3
    assert (second.repeat_of, second.evaluation_id, second.status) == (
        first.id, first.evaluation_id, first.status
    )  # fmt: skip
    assert f"this is the same program as node {first.id} ({first.status}, AS" in told(store, run, 2)
    assert f"of this candidate's source is that of node {first.id}" in told(store, run, 3)
    assert "of this candidate's source" not in told(store, run, 4)
    assert "same program" not in told(store, run, 1) + told(store, run, 3) + told(store, run, 4)
    assert all(f"\nAS: {node.as_score:.4f}\nleft: " in text for text, node in [(told(store, run, 2), second)])

    # another run on the same task knows it, too, though of no node that it could name
    again = scripted(source.replace("First", "Third"))
    other = open_tiny(store, task, model=again, evaluator=evaluator, islands=1, iters=1)
    finish(other)
    assert len(evaluator.asked) == 3
    assert "same program" not in told(store, other.run, 1)
