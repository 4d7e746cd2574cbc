"""Other people's MCP programs on `passagent mcp`: the conformance suite, the inspector, a coding agent.

`make check-mcp` runs this. The first time it installs what checks/environments/mcp/package.json pins.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from environments import node_modules

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import tiny  # noqa: E402
from mcp import Client  # noqa: E402
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402
from wire_server import Said, WireServer  # noqa: E402

from passagent.store import Store  # noqa: E402
from passagent.store.nodes import get_node, profiles_of  # noqa: E402
from passagent.view.mcp.served_tools import SERVED  # noqa: E402

PASSAGENT = [sys.executable, "-m", "passagent"]
QUICK = ("--set", "evaluator.budget_s=0.2")
FILES = tiny.candidate().files


@pytest.fixture(scope="module")
def programs():
    """The directory of the npm programs; node of that version is there, too."""
    try:
        return node_modules("mcp") / ".bin"
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the task `tiny`."""
    top = tmp_path_factory.mktemp("mcp")
    tiny.write_task(top / "tasks" / "tiny")
    return top


def words(place, *more):
    """The command line of the server on these tasks."""
    return [
        *PASSAGENT,
        "mcp",
        "--tasks",
        str(place / "tasks"),
        "--runs-dir",
        str(place / "runs"),
        *QUICK,
        *more,
    ]


def over_stdio(place, *more):
    """How a client starts the server."""
    command, *arguments = words(place, *more)
    return stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))


@contextmanager
def at_address(*command, cwd=None):
    """The address of a server that is started by `command`."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        try:
            told = process.stderr.readline()
            assert "serving at" in told, told + process.stderr.read()
            yield told.split()[-1]
        finally:
            process.terminate()
            process.stderr.read()


def run(programs, *command, **more):
    """What an npm program prints to stdout; it must end with exit code 0."""
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"} | more.pop("env", {})
    ended = subprocess.run(
        [str(programs / command[0]), *command[1:]],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        **more,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


async def call(client, name, progress=None, /, **arguments):
    """What a tool answers."""
    found = await client.call_tool(name, arguments, progress_callback=progress)
    assert not found.is_error, found.content[0].text
    return found.structured_content


async def evaluated(client, progress=None, files=FILES):
    """A job's answer once it is done, and how many calls it took."""
    answer, calls = await call(client, "evaluate", progress, task="tiny", files=files), 1
    while answer["state"] == "running":
        answer, calls = await call(client, "wait", progress, job=answer["job"]), calls + 1
    return answer, calls


def test_the_conformance_suite_passes_for_what_is_declared(programs, tmp_path):
    expected = str(ROOT / "checks" / "mcp_expected_failures.yaml")
    with at_address(
        sys.executable, str(ROOT / "checks" / "mcp_fixtures.py"), str(tmp_path / "runs")
    ) as address:
        told = run(programs, "conformance", "server", "--url", address, "--expected-failures", expected)
    assert "dns-rebinding-protection: 2 passed" in told


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_scripted_client_writes_a_pass(place, mode, tmp_path):
    """From the task to a right pass; its AS is that of `passagent eval`, as far as both intervals tell."""

    async def work():
        async with Client(over_stdio(place), mode=mode) as client:
            listed = (await call(client, "list_tasks"))["tasks"]
            assert [one["graphs"] for one in listed if one["task"] == "tiny"] == [3]
            assert "silu" in (await call(client, "read_task", task="tiny"))["text"]
            broken = FILES | {"Fused.py": FILES["Fused.py"].replace("silu(a)", "relu(a)")}
            missed, _ = await evaluated(client, files=broken)
            assert missed["status"] == "mismatch" and "relu" in missed["text"]
            checked = await client.call_tool("check", {"task": "tiny", "files": FILES})
            while checked.is_error and "the device is busy" in checked.content[0].text:
                checked = await client.call_tool("check", {"task": "tiny", "files": FILES})
            assert checked.structured_content["ok"]
            done, _ = await evaluated(client)
            assert done["status"] == "ok" and done["best_as"] >= done["as_score"]
            return done

    done = asyncio.run(work())
    tiny.candidate().write(tmp_path / "pass_dir")
    command = [
        *(*PASSAGENT, "eval", place / "tasks/tiny", "--pass-dir", tmp_path / "pass_dir", "--fresh"),
        *("--json", *QUICK, "--runs-dir", tmp_path / "runs"),
    ]
    # an interval does not hold what differs between processes, which is much where a call takes 3 us
    seen, apart = [], 1.5
    while not any(
        one["as_low"] < apart * done["as_high"] and done["as_low"] < apart * one["as_high"] for one in seen
    ):
        assert len(seen) < 8, (done["as_low"], done["as_high"], seen)
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        seen.append({key: json.loads(told.stdout)[key] for key in ("as_low", "as_high")})


LIMIT_S, WAIT_S, BUDGET_S = map(float, os.environ.get("LONG_EVALUATION", "15,3,3").split(","))
"""A client's hard limit, what the server waits, and how long each of three graphs is measured, s."""


def test_a_long_evaluation_never_meets_a_clients_limit(place):
    """In full size: LONG_EVALUATION=60,45,60."""

    async def work():
        slow = ("--set", f"evaluator.budget_s={BUDGET_S}", "--max-wait", str(WAIT_S))
        async with Client(over_stdio(place, *slow)) as client:
            await call(client, "evaluate", task="tiny", files=FILES | {"other.py": "X = 1\n"})
            begun, calls = asyncio.get_running_loop().time(), 0
            arguments = {"task": "tiny", "files": FILES}
            answer = {"state": "running"}
            while answer["state"] == "running":
                found = await client.call_tool(
                    "wait" if calls else "evaluate", arguments, read_timeout_seconds=LIMIT_S
                )
                answer, calls = found.structured_content, calls + 1
                arguments = {"job": answer["job"]}
            print(f"{calls} calls, {asyncio.get_running_loop().time() - begun:.0f} s")
            assert answer["status"] == "ok" and calls > 1

    asyncio.run(work())


def test_two_clients_at_once_are_right_and_told_their_place(place):
    other = FILES | {"Fused.py": FILES["Fused.py"].replace("+ 1.0f", "+ 1.5f")}

    async def work(address):
        told = {"a": [], "b": []}

        def listen(name):
            async def progress(done, total, message):
                told[name].append(message)

            return progress

        async with Client(address) as a, Client(address) as b:
            right, wrong = await asyncio.gather(
                evaluated(a, listen("a"), FILES | {"a.py": "X = 2\n"}), evaluated(b, listen("b"), other)
            )
        assert (right[0]["status"], wrong[0]["status"]) == ("ok", "wrong_result")
        assert told["a"] and told["b"]
        assert any("1 before it in this server" in one for one in told["a"] + told["b"]), told

    with at_address(*words(place, "--http", "127.0.0.1:0")) as address:
        asyncio.run(work(address))


ARGUMENTS = {
    "list_tasks": {},
    "read_task": {"task": "tiny"},
    "check": {"task": "tiny", "files": FILES},
    "evaluate": {"task": "tiny", "files": FILES},
    "wait": {"job": 1},
    "cancel": {"job": 1},
    "profile": {"job": 1},
    "search_knowledge": {"query": "softmax"},
    "read_document": {"path": "index.md"},
    "history": {"task": "tiny"},
    "best": {"task": "tiny"},
}


def test_the_inspector_calls_every_tool(programs, place):
    """It starts a server for a list and an evaluation, and asks one at an address for everything else."""

    def ask(server, *request):
        patient = ("--connect-timeout", "120000")
        return json.loads(run(programs, "mcp-inspector", "--cli", *server, *patient, *request, cwd=place))

    def use(server, name):
        pairs = [f"{key}={json.dumps(value)}" for key, value in ARGUMENTS[name].items()]
        options = [word for pair in pairs for word in ("--tool-arg", pair)]
        answer = ask(server, "--method", "tools/call", "--tool-name", name, *options)
        assert not answer.get("isError") and answer["structuredContent"], (name, answer)

    started = words(place)
    listed = {tool["name"] for tool in ask(started, "--method", "tools/list")["tools"]}
    assert listed == SERVED.keys() == ARGUMENTS.keys()
    use(started, "evaluate")  # then there is a job to ask for
    with at_address(*words(place, "--http", "127.0.0.1:0"), cwd=place) as address:
        for name in [name for name in ARGUMENTS if name != "evaluate"]:
            use([address], name)
    with Store.open(place / "runs", create=False) as store:  # for the page, and `why`
        assert "what limits it:" in profiles_of(store, get_node(store, 1))[0].text


def test_a_coding_agents_command_line_evaluates_a_file(programs, place, tmp_path):
    """Claude Code, whose model is a script on 127.0.0.1: it reads a task, evaluates a pass, and waits."""

    def brain(body):
        if not any("passagent" in tool.get("name", "") for tool in body.get("tools", [])):
            return Said("a title")
        said = [m["content"] for m in body["messages"] if isinstance(m["content"], list)]
        results = [part for content in said for part in content if part.get("type") == "tool_result"]
        last = json.dumps(results[-1]) if results else ""
        if not results:
            tool, arguments = "read_task", {"task": "tiny"}
        elif len(results) == 1:
            tool, arguments = "evaluate", {"task": "tiny", "files": FILES}
        elif '\\"running\\"' in last:
            job = json.loads(last.partition('\\"job\\":')[2].partition(",")[0])
            tool, arguments = "wait", {"job": job}
        else:
            return Said(last)
        return Said("", [(f"call_{len(results)}", f"mcp__passagent__{tool}", json.dumps(arguments))])

    command, *arguments = words(tmp_path, "--tasks", str(place / "tasks"))
    (tmp_path / "tasks").mkdir()
    server = {"command": command, "args": arguments, "env": {"PYTHONPATH": str(ROOT)}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"passagent": server}}))
    with WireServer(brain) as models:
        environment = {
            "HOME": str(tmp_path),
            "ANTHROPIC_BASE_URL": models.url,
            "ANTHROPIC_API_KEY": "sk-not-a-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_TIMEOUT": "60000",
        }
        told = run(
            programs,
            *("claude", "-p", "Make a pass.", "--output-format", "json", "--model", "claude-sonnet-4-6"),
            *("--mcp-config", "mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__passagent"),
            env=environment,
            cwd=tmp_path,
        )
    assert '\\"status\\":\\"ok\\"' in json.loads(told)["result"]
    shown = [*PASSAGENT, "show", "1", "--why", "--runs-dir", str(tmp_path / "runs"), "--json"]
    why = json.loads(subprocess.run(shown, capture_output=True, text=True, check=True).stdout)
    assert why["chain"][0]["episode"]["model"].startswith("mcp/claude-code/2.")
