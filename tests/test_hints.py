"""Hints: the curated ones are valid, retrieval ranks by fit and confidence, and uplift has an interval."""

import random

import pytest
import yaml

from passagent.errors import UsageError
from passagent.experience.diagnosis import LABELS, LIMITERS
from passagent.experience.hints import Context, Hint, Situation, Uplift, load_hints, retrieve, uplift

ADVICE = "Advice that is long enough to be some."


def hint(name, trigger=("latency_bound",), confidence=0.5, **context) -> Hint:
    return Hint(
        id=name,
        trigger=list(trigger),
        context=Context(**context),
        advice=ADVICE,
        source="test",
        confidence=confidence,
    )


def ids(
    hints,
    label="latency_bound",
    operators=("add",),
    target="cpu",
    dtypes=("float32",),
    limit=10,
    **more,
):
    return [
        hint.id
        for hint in retrieve(
            hints, Situation(label, frozenset(operators), target, frozenset(dtypes)), limit, **more
        )
    ]


def test_the_shipped_library():
    hints = load_hints()
    assert len(hints) >= 40
    assert len({h.advice for h in hints}) == len(hints)
    answered = {label for h in hints for label in h.trigger}
    # a fault of the machine needs no advice, nor does what was not timed
    assert answered == set(LABELS) - {"infrastructure", "untimed"}
    for label in LIMITERS:
        for target in ("cpu", "cuda"):
            assert len(ids(hints, label, ["mul"], target)) >= 5, (label, target)


def test_the_hint_to_convert_through_buffers_names_where_that_loses():
    [found] = [hint for hint in load_hints() if hint.id == "half-through-buffers"]
    assert "It loses for bfloat16 where tiles of a row are computed in registers" in found.advice


def test_only_hints_that_apply():
    hints = [
        hint("any"),
        hint("other-trigger", trigger=["mismatch"]),
        hint("cuda-only", targets=["cuda"]),
        hint("softmax-only", operators=["softmax"]),
        hint("half-only", dtypes=["float16"]),
    ]
    assert ids(hints) == ["any"]
    assert set(ids(hints, target="cuda:1")) == {"any", "cuda-only"}
    assert ids(hints, operators=["softmax"])[0] == "softmax-only"
    assert set(ids(hints, dtypes=["float16", "float32"])) == {"any", "half-only"}
    assert ids(hints, "mismatch") == ["other-trigger"]
    assert ids(hints, "infrastructure") == []
    assert len(ids([hint(f"h{i}") for i in range(9)], limit=3)) == 3


def test_the_more_confident_hint_ranks_first():
    hints = [hint("unsure", confidence=0.1), hint("sure", confidence=0.9)]
    assert ids(hints) == ["sure", "unsure"]


def test_uplift_is_the_difference_of_mean_gains_with_an_interval():
    rng = random.Random(7)
    shown, held_out = [rng.gauss(0.2, 0.05) for _ in range(80)], [rng.gauss(0.05, 0.05) for _ in range(20)]
    found = uplift(shown, held_out)
    assert found.low < 0.15 < found.high and found.high - found.low < 0.1
    assert (found.shown, found.held_out) == (80, 20)
    assert uplift(shown, held_out) == found, "the same gains, the same interval"
    assert uplift([0.3], [0.1]) == Uplift(pytest.approx(0.2), None, None, 1, 1)
    assert uplift([0.3], []) == Uplift(None, None, None, 1, 0)


def test_chance_explores():
    hints = [hint(f"h{i}") for i in range(20)]
    draws = {tuple(ids(hints, limit=5, rng=random.Random(seed))) for seed in range(5)}
    assert len(draws) > 1
    assert ids(hints, rng=random.Random(1)) == ids(hints, rng=random.Random(1))


def entry(**fields) -> str:
    """A library of one hint; a field of None is left out."""
    values = {
        "id": "a",
        "trigger": ["mismatch"],
        "advice": ADVICE,
        "source": "test",
        "confidence": 1,
    } | fields
    return yaml.safe_dump([{key: value for key, value in values.items() if value is not None}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry(confidence=2), "hint a: confidence"),
        (entry(trigger=["mismatsh"]), "hint a: trigger: .*did you mean 'mismatch'"),
        (entry(trigger=[]), "hint a: trigger"),
        (entry(id="A b"), "hint A b: id"),
        (entry(advice=None), "hint a: advice: Field required"),
        (entry(advise="x"), "hint a: advise"),
        (entry(context={"operator": ["add"]}), r"hint a: context\.operator"),
        ("- just text", "hint number 1"),
        ("a: b", "valid list"),
        ("- [unclosed", "not valid YAML"),
        (entry() * 2, "second hint with this id"),
    ],
)
def test_a_broken_library_is_one_clear_line(text, message, monkeypatch, tmp_path):
    (tmp_path / "knowledge").mkdir()
    (tmp_path / "knowledge" / "hints.yaml").write_text(text)
    monkeypatch.setenv("PASSAGENT_RESOURCES", str(tmp_path))
    with pytest.raises(UsageError, match=message) as caught:
        load_hints()
    assert str(caught.value).startswith(f"{tmp_path}/knowledge/hints.yaml")
    assert "\n" not in str(caught.value)
