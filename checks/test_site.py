"""The site builds without a warning, the notebooks run in empty directories, and the citation is whole.

`make check-site` runs this. mkdocs and Jupyter live in an environment of their own (checks/environments.py).
"""

import json
import os
import subprocess
import tomllib

import pytest
import yaml
from environments import REQUIREMENTS, ROOT, python_of
from packaging.requirements import Requirement

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def python():
    """The interpreter with the packages of the extra `docs`."""
    return python_of("docs")


def run(*command, cwd):
    """What a command printed; it must succeed."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    ended = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


def test_the_environment_is_the_extra():
    pinned = dict(line.split("==") for line in (REQUIREMENTS / "docs.txt").read_text().splitlines()[1:])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in map(Requirement, extras["docs"]):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_the_site_builds_without_a_warning(python, tmp_path):
    run(python, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path, cwd=ROOT)
    commands = (tmp_path / "reference/commands.html").read_text()
    assert "passagent run" in commands and "--iters" in commands
    assert "cpp_kernel" in (tmp_path / "reference.html").read_text()


def test_the_citation_has_what_the_format_requires():
    """https://github.com/citation-file-format: schema 1.2.0."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["title"] and citation["message"] and all(author["name"] for author in citation["authors"])
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_has_no_outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    assert len(cells) < 15
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_directory(notebook, python, tmp_path):
    (tmp_path / notebook.name).write_text(notebook.read_text())
    run(python.with_name("jupyter"), "execute", "--inplace", notebook.name, cwd=tmp_path)
    cells = json.loads((tmp_path / notebook.name).read_text())["cells"]
    texts = [text for cell in cells for out in cell.get("outputs", []) for text in out.get("text", [])]
    assert not any("Traceback" in text for text in texts)
    assert any(cell.get("outputs") for cell in cells)
