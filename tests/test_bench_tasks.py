"""Which tasks `passagent bench` means: directories, globs, sample lists."""

from __future__ import annotations

import pytest
import tiny

from passagent.errors import UsageError
from passagent.tasks.tasklist import find_tasks


def test_tasks_directories_globs_and_lists(tmp_path, monkeypatch):
    for name in ("samples/a/1", "samples/a/2", "samples/b/3"):
        tiny.write_task(tmp_path / name)
    (tmp_path / "samples/README.md").write_text("no task")
    (tmp_path / "sample_lists/eval").mkdir(parents=True)
    listing = tmp_path / "sample_lists/eval/few.txt"
    listing.write_text("# two of them\n\nsamples/b/3\n  samples/a/1  \nsamples/b/3\n")
    table = tmp_path / "sample_lists/all.csv"
    table.write_text("sample_path\nsamples/a/2\nsamples/a/1\n")
    monkeypatch.chdir(tmp_path)

    def names(*words: str, root: str | None = None) -> list[str]:
        return [path.name for path in find_tasks(words, root)]

    assert names("samples/a/2") == ["2"]
    assert (
        names("samples")
        == names("samples/*")
        == names("samples/*/*")
        == names("**/samples")
        == ["1", "2", "3"]
    )
    assert names("samples/b", "samples") == ["3", "1", "2"]
    assert names("samples/a/1/graphs/g0_float32") == ["g0_float32"]
    assert names("sample_lists/eval/few.txt") == names("sample_lists/eval/*.txt") == ["3", "1"]  # from here
    assert names("sample_lists/all.csv") == ["2", "1"]
    monkeypatch.chdir("/")
    assert names(str(listing), root=str(tmp_path)) == ["3", "1"]
    (tmp_path / "here.txt").write_text(f"samples/a/2\n{tmp_path}/samples/a/1\n")
    assert names(str(tmp_path / "here.txt")) == ["2", "1"]  # from the list's own directory; absolute


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("task1\n\ntask9\n", "list.txt:3: task9: no such directory"),
        ("# none\n", "list.txt: lists no task"),
        ("empty\n", "list.txt:1: empty: holds neither graph_list.txt nor model.py"),
        (b"\xff\xfe", "list.txt: not a readable sample list: is not UTF-8 text"),
    ],
)
def test_mistakes_in_a_list(tmp_path, content, told):
    tiny.write_task(tmp_path / "task1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as raised:
        find_tasks([str(tmp_path / "list.txt")])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_links_are_followed_once(tmp_path):
    tiny.write_task(tmp_path / "real/1")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/linked").symlink_to(tmp_path / "real")
    (tmp_path / "samples/round").symlink_to(tmp_path / "samples")
    assert [path.name for path in find_tasks([str(tmp_path / "samples"), str(tmp_path / "real/1")])] == ["1"]
