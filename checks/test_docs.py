"""README and docs tell the truth: every command of every `console` block runs as it is printed.

A block with a title is a file of that name, which is written when its turn comes.

`make check-docs` runs this. Each page begins in a directory that holds one short run. What this machine
cannot have is exchanged: the GPU for the CPU, a provider for a server on 127.0.0.1. Searches make an episode
on one graph of the task, and measure each candidate for a tenth of the time; those with a provider's model
have none of the built-in one's. On the pages WHOLE the built-in model makes two, and the best candidates are
measured again; it makes two, too, where a page goes on with the last run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import paid_run  # noqa: E402
from wire_server import WireServer  # noqa: E402

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
WHOLE = (ROOT / "README.md", ROOT / "docs/tutorial.md")
GO_ON = (*WHOLE, *(ROOT / "docs" / name for name in ("operators.md", "plans.md")))
"""Pages that show what to do with the last run."""
PAID = re.compile(r"--model (openai|anthropic)/")
OURS = ("passagent", "sqlite-utils", "cp", "git", "pytest", "sed")
"""Programs that are run. Others (vllm, ollama, pip, ...) are people's own."""
SEARCHES = ("passagent run ", "passagent fork ", "passagent optimize ")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```', re.S | re.M)
ELSEWHERE = re.compile(r"https?://(?:127\.0\.0\.1|localhost|gateway\.example\.com)[:\d]*")


def steps(page):
    """In the page's order: (None, command) for a line behind `$ `, continued ones joined; (file, text)."""
    for language, title, text in BLOCK.findall(page.read_text()):
        if title:
            yield title, text
        elif language == "console":
            lines = text.replace("\\\n", " ").splitlines()
            yield from ((None, line[2:]) for line in lines if line.startswith("$ "))


def as_run(printed, server, page):
    """The command with what this machine cannot have exchanged; None if it is not ours to run."""
    words = shlex.split(printed, comments=True)
    if words[0] not in OURS:
        return None
    is_search, is_paid = printed.startswith(SEARCHES), bool(PAID.search(printed))
    is_whole = page in WHOLE and not is_paid
    most = 1 if is_search and (is_paid or page not in GO_ON) else 2
    command = re.sub(r"--iters (\d+)", lambda match: f"--iters {min(most, int(match[1]))}", printed)
    command = command.replace("--device cuda", "--device cpu")
    command = ELSEWHERE.sub(server.url, command)
    for name, value in {"TASK": "example:add_layer_norm", "RUN": "last", "NODE": "1", "EPISODE": "1"}.items():
        command = re.sub(rf"(?<![\w/.-]){name}(?![\w/.-])", value, command)
    if is_search:
        quick = " --set evaluator.budget_s=0.05" + ("" if is_whole else " --set search.finalists=0")
        quick += " --set search.expert_seeds=0" if is_paid else ""
        quick += "" if "--iters" in command else f" --iters {most}"
        command, comment, rest = command.partition(" #")
        command += quick + comment + rest
    return command


@pytest.fixture(scope="session")
def resources(once):
    """The example tasks with one graph each."""

    def make(top):
        shutil.copytree(ROOT / "examples", top / "examples")
        for listing in top.glob("examples/tasks/*/graph_list.txt"):
            listing.write_text(listing.read_text().splitlines()[0] + "\n")

    return once("resources", make)


@pytest.fixture(scope="session")
def shell(resources, tmp_path_factory):
    """Run a command line in a directory; it must succeed, without a traceback."""
    with WireServer(paid_run.brain) as server:
        environment = os.environ | {
            "OPENAI_API_KEY": "sk-test",
            "ANTHROPIC_API_KEY": "sk-test",
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_BASE_URL": server.url,
            "PASSAGENT_RESOURCES": str(resources),
            "XDG_DATA_HOME": str(tmp_path_factory.mktemp("data")),
            "GIT_AUTHOR_NAME": "A reader",
            "GIT_AUTHOR_EMAIL": "reader@example.com",
            "GIT_COMMITTER_NAME": "A reader",
            "GIT_COMMITTER_EMAIL": "reader@example.com",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

        def run(command, cwd):
            ended = subprocess.run(
                ["bash", "-c", command],
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
            assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
            assert "Traceback" not in ended.stderr, f"{command}\n{ended.stderr}"

        yield server, run


@pytest.fixture(scope="session")
def begun(shell, once):
    """A runs directory with one finished run."""
    server, run = shell
    command = as_run("passagent run TASK --iters 2 --islands 1 --seed 3", server, GO_ON[-1])
    return once("begun", lambda here: run(command, here)) / "runs"


def searches(page):
    """How many searches a page shows: those with many begin first, so that all workers end together."""
    return -sum(name is None and text.startswith(SEARCHES) for name, text in steps(page))


@pytest.mark.parametrize("page", sorted(PAGES, key=searches), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_in_order(page, shell, begun, tmp_path):
    server, run = shell
    todo = list(steps(page))
    if not any(name is None and as_run(text, server, page) for name, text in todo):
        pytest.skip("has no command of ours")
    if page.name != "README.md":
        shutil.copytree(begun, tmp_path / "runs")
    for name, text in todo:
        if name is not None:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        elif command := as_run(text, server, page):
            run(command, tmp_path)
