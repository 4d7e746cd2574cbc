"""The README's commands work as they are printed: each `console` block is run from a fresh runs directory.

Only what this machine cannot have is exchanged: the GPU for the CPU, a provider for a server on 127.0.0.1;
and searches make two episodes, on one graph of the task, measuring each candidate for a tenth of the time.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wire_server import WireServer

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory that holds what a checkout's user has: the examples, with one graph, and nothing else."""
    path = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", path / "examples")
    graphs = path / "examples/tasks/add_layer_norm/graph_list.txt"
    graphs.write_text(graphs.read_text().splitlines()[0] + "\n")
    return path


@pytest.mark.slow
def test_the_readmes_commands_run_in_order(place):
    assert len(COMMANDS) >= 10
    with WireServer() as server:
        environment = os.environ | {
            "OPENAI_API_KEY": "sk-test",
            "ANTHROPIC_API_KEY": "sk-test",
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_BASE_URL": server.url,
            "PYTHONPATH": str(ROOT),
        }
        for printed in COMMANDS:
            command = re.sub(r"--iters \d+", "--iters 2", printed.replace("--device cuda", "--device cpu"))
            words = shlex.split(command)
            if words[1] == "run":
                words += ["--set", "evaluator.budget_s=0.05"]
            if words[0] == "passagent":
                words = [sys.executable, "-m", *words]
            else:
                words[0] = str(Path(sys.executable).with_name(words[0]))
            done = subprocess.run(
                words, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
    assert (place / "runs/passagent.db").is_file()
    assert (place / "best_pass/sorted_output_pass_rule_names.json").is_file()
