"""The workspace and the file editor: nothing leads out, every mistake is an observation."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from passagent.agent.tools import check_arguments, file_editor
from passagent.agent.workspace import MAX_BYTES, ToolError, Workspace
from passagent.evaluator.result import MANIFEST


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    task = tmp_path / "task-1"
    (task / "graphs" / "g").mkdir(parents=True)
    (task / "graph_list.txt").write_text("graphs/g\n")
    (task / "graphs" / "g" / "model.py").write_text("import torch\n")
    (task / "pass_dir").mkdir()
    (task / "pass_dir" / "Answer.py").write_text("secret answer")
    (tmp_path / "secret.py").write_text("secret = 1")
    return Workspace(tmp_path / "work", task)


def edit(workspace: Workspace, **arguments: Any) -> str:
    tool = file_editor(workspace)
    return asyncio.run(tool.run(check_arguments(tool.spec, arguments), "c1"))


def test_create_view_replace_insert_undo(workspace: Workspace) -> None:
    assert "2 lines written" in edit(workspace, command="create", path="A.py", file_text="a = 1\nb = 2\n")
    assert edit(workspace, command="view", path="A.py") == "    1\ta = 1\n    2\tb = 2"
    assert edit(workspace, command="view", path="A.py", view_range=[2, -1]) == "    2\tb = 2"
    edit(workspace, command="str_replace", path="A.py", old_str="b = 2", new_str="b = 3")
    edit(workspace, command="insert", path="A.py", insert_line=0, new_str="# top")
    assert workspace.read("A.py") == "# top\na = 1\nb = 3\n"
    edit(workspace, command="undo_edit", path="A.py")
    edit(workspace, command="undo_edit", path="A.py")
    assert workspace.read("A.py") == "a = 1\nb = 2\n"
    assert "removed" in edit(workspace, command="undo_edit", path="A.py")
    with pytest.raises(ToolError, match="no edit to undo"):
        edit(workspace, command="undo_edit", path="A.py")
    assert workspace.files() == {}


def test_str_replace_must_match_once(workspace: Workspace) -> None:
    workspace.reset({"A.py": "x = 1\ny = 1\nx = 1\n"})
    with pytest.raises(ToolError, match="lines 1, 3"):
        edit(workspace, command="str_replace", path="A.py", old_str="x = 1", new_str="")
    with pytest.raises(ToolError, match="does not occur"):
        edit(workspace, command="str_replace", path="A.py", old_str="x  = 1", new_str="")
    with pytest.raises(ToolError, match="empty"):
        edit(workspace, command="str_replace", path="A.py", old_str="", new_str="z")
    assert workspace.read("A.py") == "x = 1\ny = 1\nx = 1\n"


def test_what_does_not_parse_is_told_and_kept(workspace: Workspace) -> None:
    assert "does not parse: line 1" in edit(workspace, command="create", path="A.py", file_text="def f(:\n")
    assert "JSON list" in edit(workspace, command="create", path=MANIFEST, file_text='{"a": 1}')
    assert "cannot be read" in edit(workspace, command="create", path=MANIFEST, file_text="[")
    assert "But" not in edit(workspace, command="create", path=MANIFEST, file_text='["A"]')
    assert set(workspace.files()) == {"A.py", MANIFEST}


@pytest.mark.parametrize(
    "path", ["../secret.py", "a/../../secret.py", "/etc/passwd", "~/x.py", "a\0.py", "task/../x.py"]
)
@pytest.mark.parametrize("command", ["view", "create"])
def test_paths_that_lead_out_are_refused(workspace: Workspace, path: str, command: str) -> None:
    with pytest.raises(ToolError):
        edit(workspace, command=command, path=path, file_text="x = 1")
    assert (workspace.path.parent / "secret.py").read_text() == "secret = 1"


def test_links_pipes_and_devices_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace.path / "link.py").symlink_to(tmp_path / "secret.py")
    (workspace.path / "dir").symlink_to(outside)
    (workspace.path / "dangling.py").symlink_to(outside / "made.py")
    os.mkfifo(workspace.path / "pipe.py")
    for path in ("link.py", "dir/x.py", "dir/sub/x.py", "dangling.py", "pipe.py"):
        for command in ("view", "create", "str_replace"):
            with pytest.raises(ToolError):
                edit(workspace, command=command, path=path, file_text="x", old_str="s", new_str="t")
    with pytest.raises(ToolError):
        edit(workspace, command="view", path="dir")
    with pytest.raises(ToolError):
        workspace.files()
    assert list(outside.iterdir()) == []
    assert (tmp_path / "secret.py").read_text() == "secret = 1"


def test_huge_and_binary_files_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match="bytes"):
        edit(workspace, command="create", path="A.py", file_text="x" * (MAX_BYTES + 1))
    (workspace.path / "big.py").write_bytes(b"#" * (MAX_BYTES + 1))
    (workspace.path / "bin.py").write_bytes(b"\xff\xfe\x00")
    for path, said in (("big.py", "limit"), ("bin.py", "UTF-8")):
        with pytest.raises(ToolError, match=said):
            edit(workspace, command="view", path=path)


@pytest.mark.parametrize("path", ["run.sh", "A.txt", "data.json", "2a.py", ".", "a-b.py", "A.py/B.py"])
def test_only_modules_and_the_manifest_can_be_written(workspace: Workspace, path: str) -> None:
    workspace.reset({"A.py": "x = 1\n"})
    with pytest.raises(ToolError):
        edit(workspace, command="create", path=path, file_text="x = 1\n")
    assert workspace.files() == {"A.py": "x = 1\n"}


def test_the_task_is_read_only_and_answers_are_hidden(workspace: Workspace) -> None:
    assert "import torch" in edit(workspace, command="view", path="task/graphs/g/model.py")
    assert edit(workspace, command="view", path="task") == "graph_list.txt\ngraphs/"
    assert edit(workspace, command="view", path=".") == "task/"
    for path in ("task/pass_dir/Answer.py", "task/pass_dir", "task/none.py"):
        with pytest.raises(ToolError):
            edit(workspace, command="view", path=path)
    for path in ("task/graphs/g/model.py", "task/new.py"):
        with pytest.raises(ToolError, match="read-only"):
            edit(workspace, command="create", path=path, file_text="x = 1")
    assert workspace.files() == {}


def test_a_task_whose_graphs_are_a_link(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "graphs").symlink_to(workspace.task_dir / "graphs")
    (tmp_path / "linked" / "escape").symlink_to(tmp_path)
    other = Workspace(tmp_path / "other", tmp_path / "linked")
    assert "import torch" in other.read("task/graphs/g/model.py")
    with pytest.raises(ToolError):
        other.read("task/escape/secret.py")


def test_pass_dir_prefix_and_subdirectories(workspace: Workspace) -> None:
    edit(workspace, command="create", path="pass_dir/A.py", file_text="a = 1\n")
    edit(workspace, command="create", path="lib/helper.py", file_text="h = 1\n")
    assert workspace.files() == {"A.py": "a = 1\n", "lib/helper.py": "h = 1\n"}
    assert edit(workspace, command="view", path=".") == "A.py\nlib/\ntask/"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "veiw", "path": "."}, "did you mean 'view'"),
        ({"command": "view"}, "missing argument path"),
        ({"command": "view", "path": 3}, "must be of type string"),
        ({"command": "view", "path": ".", "fiel_text": ""}, "did you mean 'file_text'"),
        ({"command": "view", "path": "A.py", "view_range": ["1", 2]}, "must be of type integer"),
        ({"command": "view", "path": "A.py", "view_range": [3, 2]}, "has lines 1 to 1"),
        ({"command": "view", "path": "A.py", "view_range": [1]}, "first, last"),
        ({"command": "insert", "path": "A.py", "insert_line": 9, "new_str": ""}, "lines 0 to 1"),
        ({"command": "insert", "path": "A.py", "insert_line": True, "new_str": ""}, "type integer"),
        ({"command": "create", "path": "A.py"}, "create needs file_text"),
        ({"command": "view", "path": "B.py"}, "no such file"),
    ],
)
def test_wrong_arguments_are_explained(workspace: Workspace, arguments: dict[str, Any], said: str) -> None:
    workspace.reset({"A.py": "x = 1\n"})
    with pytest.raises(ToolError, match=said):
        edit(workspace, **arguments)
    assert edit(workspace, command="view", path="A.py", view_range=None) == "    1\tx = 1"
