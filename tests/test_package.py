"""The package as people get it: a wheel that works outside the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from passagent.agent.prompt import prompts_hash
from passagent.tasks import load_task

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel's content in a directory of its own, as pip would lay it out: with its modules compiled."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    site = out / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    return site


def in_wheel(site, code, cwd):
    """What `code` prints when only the wheel's passagent can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_wheel_finds_its_prompts_knowledge_and_configs(installed, tmp_path):
    code = (
        "import passagent; print(passagent.__file__)\n"
        "from passagent import config\nfrom passagent.tasks import resources\n"
        "from passagent.agent.prompt import roles\n"
        "from passagent.experience.hints import load_hints\n"
        "from passagent.experience.knowledge import search\n"
        "print(sorted(config.presets()), len(roles()) > 3, len(load_hints()) >= 40, bool(search('fusion')))\n"
        "print(resources.find('prompts/system.j2'))\n"
        "from passagent.kernels import toolchain as t\n"
        "files = ('prelude.h', 'prelude.cuh', 'host.h', '../plan/replay.c')\n"
        "print([(t.PRELUDE.parent / name).is_file() for name in files])"
    )
    file, found, prompt, prelude = in_wheel(installed, code, tmp_path).splitlines()
    assert Path(file).is_relative_to(installed)
    assert Path(prompt).is_relative_to(installed)
    assert found == "['default', 'kernel_evolve', 'kernel_foundry', 'passnet', 'teacher'] True True True"
    assert prelude == "[True, True, True, True]"


def test_a_wheel_that_pip_compiled_hashes_the_prompts_of_the_checkout(installed, tmp_path):
    assert list(installed.rglob("_data/prompts/**/*.pyc"))
    code = "from passagent.agent.prompt import prompts_hash; print(prompts_hash())"
    assert in_wheel(installed, code, tmp_path) == prompts_hash()


def test_a_wheel_ships_a_licence_and_example_tasks(installed, tmp_path):
    (metadata,) = installed.glob("*.dist-info")
    assert "License-Expression: Apache-2.0" in (metadata / "METADATA").read_text()
    assert "Apache License" in (metadata / "licenses/LICENSE").read_text()
    code = (
        "from passagent.tasks import load_task\n"
        "task = load_task('example:add_layer_norm')\n"
        "print(task.path, len(task.subgraphs), task.key)"
    )
    path, count, key = in_wheel(installed, code, tmp_path).split()
    assert Path(path).is_relative_to(installed)
    assert (int(count), key) == (3, load_task(ROOT / "examples/tasks/add_layer_norm").key)


def test_a_wheel_has_the_api_and_its_types(installed, tmp_path):
    assert (installed / "passagent/py.typed").is_file()
    code = "import passagent as pa; print(pa.load_task('example:add_layer_norm').name, pa.Evaluator.__name__)"
    assert in_wheel(installed, code, tmp_path) == "add_layer_norm Evaluator"


def test_a_wheel_has_the_page(installed):
    for name in ("templates/layout.html", "assets/page.css", "assets/vendor/htmx.LICENSE"):
        assert (installed / "passagent/view/page" / name).is_file()


def test_a_users_directory_overrides_file_by_file(installed, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.yaml").write_text("search: {iters: 3}\n")
    (tmp_path / "configs/default.yaml").write_text("search: {iters: 5}\n")
    code = (
        f"import os; os.environ['PASSAGENT_RESOURCES'] = {str(tmp_path)!r}\n"
        "from passagent.config import load_config, presets\n"
        "print(load_config().search.iters, load_config('mine').search.iters, 'passnet' in presets())"
    )
    assert in_wheel(installed, code, tmp_path) == "5 3 True"
