"""The workspace and the file editor: nothing leads out, every mistake is an observation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passagent.agent.editor import file_editor
from passagent.agent.toolbox import check_arguments
from passagent.agent.workspace import MAX_BYTES, MAX_FILES, ToolError, Workspace, read_task_files
from passagent.evaluator.result import MANIFEST


@pytest.fixture
def task(tmp_path: Path) -> Path:
    task = tmp_path / "task-1"
    (task / "graphs" / "g").mkdir(parents=True)
    (task / "graph_list.txt").write_text("graphs/g\n")
    (task / "graphs" / "g" / "model.py").write_text("import torch\n")
    (task / "pass_dir").mkdir()
    (task / "pass_dir" / "Answer.py").write_text("secret answer")
    (tmp_path / "secret.py").write_text("secret = 1")
    return task


Holding = Callable[[dict[str, str]], Workspace]


@pytest.fixture
def holding(task: Path) -> Holding:
    """`holding(files)`: a workspace that begins with them."""
    return lambda files: Workspace(read_task_files(task), files)


@pytest.fixture
def workspace(holding: Holding) -> Workspace:
    return holding({})


def edit(workspace: Workspace, **arguments: Any) -> str:
    tool = file_editor(workspace)
    return asyncio.run(tool.run(check_arguments(tool.spec, arguments), "c1")).text


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


def test_what_does_not_parse_is_told_and_kept(workspace: Workspace) -> None:
    assert "does not parse: line 1" in edit(workspace, command="create", path="A.py", file_text="def f(:\n")
    assert "JSON list" in edit(workspace, command="create", path=MANIFEST, file_text='{"a": 1}')
    assert "cannot be read" in edit(workspace, command="create", path=MANIFEST, file_text="[")
    assert "But" not in edit(workspace, command="create", path=MANIFEST, file_text='["A"]')
    assert set(workspace.files()) == {"A.py", MANIFEST}


def test_links_and_pipes_in_a_task_are_left_out(task: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.py").write_text("secret = 1")
    (task / "link.py").symlink_to(tmp_path / "secret.py")
    (task / "dir").symlink_to(outside)
    os.mkfifo(task / "pipe.py")
    (task / "big.py").write_bytes(b"#" * (MAX_BYTES + 1))
    (task / "bin.py").write_bytes(b"\xff\xfe\x00")
    assert read_task_files(task).keys() == {"task/graph_list.txt", "task/graphs/g/model.py"}


def test_huge_and_binary_files_are_refused(workspace: Workspace) -> None:
    for text, said in (("x" * (MAX_BYTES + 1), "bytes"), ("a\0b", "NUL")):
        with pytest.raises(ToolError, match=said):
            edit(workspace, command="create", path="A.py", file_text=text)


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


def test_a_task_whose_graphs_are_a_link(task: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "graphs").symlink_to(task / "graphs")
    (tmp_path / "linked" / "escape").symlink_to(tmp_path)
    other = Workspace(read_task_files(tmp_path / "linked"), {})
    assert edit(other, command="view", path="task") == "graphs/"
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
def test_wrong_arguments_are_explained(holding: Holding, arguments: dict[str, Any], said: str) -> None:
    workspace = holding({"A.py": "x = 1\n"})
    with pytest.raises(ToolError, match=said):
        edit(workspace, **arguments)
    assert edit(workspace, command="view", path="A.py", view_range=None) == "    1\tx = 1"


WORDS = [
    *("..", ".", "", "/", "~", "-", "a", "a b", "A.py", "B.py", "a.PY", "task", "Task", "TASK", "pass_dir"),
    *("PASS_DIR", "link", "link.py", "pipe.py", "graphs", "g", "model.py", "secret.py", "Answer.py"),
    *("__pycache__", "C:\\x.py", "..\\secret.py", "%2e%2e", "CON.py", "ä.py", "\u202e.py", "\0", "x" * 300),
    MANIFEST,
]
NAMES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("/".join)


def contents(root: Path) -> dict[str, bytes]:
    """Every file under a directory, by content."""
    found = [file for file in sorted(root.rglob("*")) if file.is_file() and not file.is_symlink()]
    return {str(file): file.read_bytes() for file in found}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=NAMES, command=st.sampled_from(["view", "create", "str_replace", "insert", "undo_edit"]))
def test_no_path_leads_out(holding: Holding, task: Path, path: str, command: str) -> None:
    if not (task / "link").is_symlink():
        (task / "link").symlink_to(task.parent)
        (task / "link.py").symlink_to(task.parent / "secret.py")
        os.mkfifo(task / "pipe.py")
    workspace = holding({"A.py": "x = 1\n", "a/B.py": "y = 1\n"})
    before = contents(task.parent)
    arguments = {"file_text": "new\n", "old_str": "x", "new_str": "z", "insert_line": 0}
    try:
        said = edit(workspace, command=command, path=path, **arguments)
    except ToolError as error:
        said = str(error)
    assert "secret = 1" not in said and "secret answer" not in said
    assert contents(task.parent) == before
    assert len(said) < 2000


ONLY = "only Python modules"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *(
            (path, ONLY)
            for path in ("run.sh", "A.txt", "data.json", "2a.py", ".", "a-b.py", "ä.py", "A.py\n")
        ),
        (f"sub/{MANIFEST}", ONLY),
        ("A.py/B.py", "named like Python packages"),
        ("b/" * 19 + "A.py", "few"),
        ("b/" * 30 + "A.py", "too long"),
        ("x" * 300 + ".py", "too long"),
        ("__pycache__/A.py", "__pycache__"),
    ],
)
def test_files_with_other_names_are_refused(holding: Holding, path: str, said: str) -> None:
    workspace = holding({"A.py": "x = 1\n"})
    with pytest.raises(ToolError, match=said):
        edit(workspace, command="create", path=path, file_text="y = 1\n")
    assert workspace.files() == {"A.py": "x = 1\n"}


def test_a_directory_holds_so_many_files(workspace: Workspace) -> None:
    for number in range(MAX_FILES):
        edit(workspace, command="create", path=f"m{number}.py", file_text="x = 1\n")
    with pytest.raises(ToolError, match="more are not allowed"):
        edit(workspace, command="create", path="one_more.py", file_text="x = 1\n")
    edit(workspace, command="create", path="m0.py", file_text="x = 2\n")


texts = st.text(alphabet="ab \n\tä\r\x0c", max_size=60)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts, old=st.text(alphabet="ab \n", min_size=1, max_size=4), new=texts)
def test_str_replace_replaces_what_is_there_once(holding: Holding, text: str, old: str, new: str) -> None:
    workspace = holding({"A.py": text})
    found = sum(text.startswith(old, at) for at in range(len(text)))
    if found == 1:
        edit(workspace, command="str_replace", path="A.py", old_str=old, new_str=new)
        assert workspace.read("A.py") == text.replace(old, new)
        edit(workspace, command="undo_edit", path="A.py")
    else:
        with pytest.raises(ToolError, match=f"occurs {found} times" if found else "does not occur"):
            edit(workspace, command="str_replace", path="A.py", old_str=old, new_str=new)
    assert workspace.read("A.py") == text


edits = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(["A.py", "B.py", "lib/C.py"]), texts),
    st.tuples(st.just("insert"), st.sampled_from(["A.py", "B.py"]), texts),
    st.tuples(st.just("restore"), st.just("."), st.integers(0, 3)),
    st.tuples(st.just("keep"), st.just(""), st.just("")),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edits, max_size=12))
def test_every_edit_can_be_undone(holding: Holding, script: list[tuple[str, str, Any]]) -> None:
    """Undone one by one in reverse order, edits and restores lead back through every state."""
    workspace = holding({"A.py": "x = 1\n"})
    states, changed = [workspace.files()], []
    for command, path, value in script:
        before = workspace.files()
        try:
            if command == "keep":
                workspace.keep()
            elif command == "insert":
                edit(workspace, command="insert", path=path, insert_line=0, new_str=value)
            elif command == "restore":
                edit(workspace, command="restore", path=path, version=value)
                assert workspace.files() == workspace.versions[value]
            else:
                edit(workspace, command="create", path=path, file_text=value)
        except ToolError:
            assert workspace.files() == before
            continue
        if command in ("insert", "create"):
            names = [path]
        else:
            after = workspace.files()
            names = [name for name in before | after if before.get(name) != after.get(name)]
        if names:
            states.append(workspace.files())
            changed.append(names)
    for names, before in zip(reversed(changed), reversed(states[:-1]), strict=True):
        for name in names:
            edit(workspace, command="undo_edit", path=name)
        assert workspace.files() == before
