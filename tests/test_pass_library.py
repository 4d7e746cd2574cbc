"""The library of passes: what is kept, what replaces what."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from test_cli import one_line

from passagent.errors import UsageError
from passagent.store.pass_library import KeptPass, PassLibrary, default_path, licence_of

GELU = KeptPass(
    instance="1:" + "a" * 64, structure="1:" + "b" * 64, device="a CPU", torch="2.13.0", operators="gelu",
    task='{"model.py": "text"}', files='{"FuseGelu.py": "pass"}', plan="c" * 64, dispatch="graph",
    reference="inductor", speedup=1.2, as_score=1.3, as_low=1.2, as_high=1.4, run="runs 1a2b", model="expert",
    licence=licence_of("expert"),
)  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "data" / "library.db"


def test_a_pass_is_found_by_region_device_and_torch(path):
    with PassLibrary.open(path) as library:
        assert library.keep(GELU)
        assert library.find(GELU.instance, "a CPU", "2.13.0", "inductor").sources == {"FuseGelu.py": "pass"}
        assert library.find(GELU.instance, "another CPU", "2.13.0", "inductor") is None
        assert library.find(GELU.instance, "a CPU", "2.14.0", "inductor") is None


def test_the_faster_pass_stays_and_one_that_does_not_hold_gives_way(path):
    slower, faster = replace(GELU, speedup=1.1, plan="slow"), replace(GELU, speedup=1.5, plan="fast")
    with PassLibrary.open(path) as library:
        assert [library.keep(one) for one in (GELU, slower, faster)] == [True, False, True]
        (kept,) = library.passes()
        assert kept.plan == "fast"
        library.note(kept, "wrong_result")
        assert library.find(GELU.instance, "a CPU", "2.13.0", "inductor") is None
        assert library.keep(slower)
        (kept,) = library.passes()
        assert (kept.plan, kept.status) == ("slow", "ok")


def test_the_users_library_is_below_the_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "passagent" / "library.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_path() == Path.home() / ".local/share/passagent/library.db"


def test_library_is_listed_and_shown(call, path):
    code, _, err = call("library", "list", "--library", path)
    assert code == 2 and "there is no library here" in one_line(err)
    with PassLibrary.open(path) as library:
        library.keep(GELU)
        library.keep(replace(GELU, instance="1:" + "d" * 64, operators="relu", torch="2.12.0"))
        library.note(library.named("aaaa"), "wrong_result")
    code, out, _ = call("library", "list", "--library", path)
    assert code == 0 and "gelu" in out and "wrong_result" in out
    code, out, _ = call("library", "show", "aaaa", "--library", path)
    assert code == 0 and "runs 1a2b" in out and "--- FuseGelu.py\npass" in out
    code, _, err = call("library", "show", "zz", "--library", path)
    assert code == 2 and "no pass has 'zz'" in one_line(err)


def test_a_file_of_something_else_is_told(tmp_path):
    other = tmp_path / "library.db"
    other.write_text("no database" * 1000)
    with pytest.raises(UsageError, match="not a healthy SQLite database"), PassLibrary.open(other):
        pass


@pytest.mark.long
def test_verify_evaluates_again(call, path, tmp_path):
    import torch

    from passagent.sandbox.environment import device_name

    subgraph = tiny.write_subgraph(tmp_path / "small", [4, 64])
    texts = {file.name: file.read_text() for file in subgraph.iterdir() if file.is_file()}
    files = {"Wrong.py": "raise SystemExit", "sorted_output_pass_rule_names.json": '["Wrong"]'}
    kept = replace(
        GELU, device=device_name("cpu"), torch=str(torch.__version__), dispatch="direct", reference="eager",
        task=json.dumps(texts), files=json.dumps(files),
    )  # fmt: skip
    with PassLibrary.open(path) as library:
        library.keep(kept)
    code, _, err = call("library", "verify", "--library", path)
    assert code == 1 and "does not hold any more" in one_line(err)
    with PassLibrary.open(path) as library:
        (noted,) = library.passes()
    assert noted.status != "ok" and noted.verified_at is not None
