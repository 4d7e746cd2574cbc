"""Compilers see what was checked, run shut in, and tell of no other file.

An author's source is compiled on the trusted side: what the compiler could be made to read, and what its
messages would show, would leak.
"""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.errors import InfrastructureError
from passagent.kernels import build as cpp_build
from passagent.kernels import build_cuda, lexer, objects, toolchain
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.sandbox import tools
from passagent.sandbox.limits import COMPILE, MESSAGE, ToolLimits

SIGNATURE = cpp_build.Signature(("float*",))
BODY = "void f(float* x) { x[0] = 1; }\n"
SECRET = "root_of_all:x:0:0"


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "secret.h"
    path.write_text(f"{SECRET}\n#error {SECRET}\n")
    return path


HIDDEN = {
    "carriage return": "// a\r#include {}\n",
    "carriage return behind a splice": "// a \\\r#include {}\n",
    "form feed": "// a\f#include {}\n",
    "vertical tab": "// a\v#include {}\n",
    "next line": "// a\x85#include {}\n",
    "line separator": "// a\u2028#include {}\n",
    "paragraph separator": "// a\u2029#include {}\n",
    "nul": "// a\0#include {}\n",
    "byte order mark": "\ufeff#include {}\n",
    "byte order mark later": "\n\ufeff#include {}\n",
    "trigraph splice": "// a??/\n#include {}\n",
    "trigraph hash": "??=include {}\n",
    "splice": "#inc\\\nlude {}\n",
    "splice with blanks": "#inc\\ \t\f\v\r\nlude {}\n",
    "digraph": "%:include {}\n",
    "comment in it": "#/**/include/**/{}\n",
    "comment that ends in a string": 'auto* s = "/*";\n#include {}\n/* */\n',
    "string over a carriage return": '#define A "\r#include {}\n',
    "character over a carriage return": "#define A '\r#include {}\n",
    "raw string": 'auto* s = R"(";\n#include {}\n)";\n',
    "raw string by a macro": '#define R\nauto* s = R"(a)"\n#include {}\n";\n',
    "surrogate": "// a\ud800\r#include {}\n",
    "import": "import {};\n",
    "embed": "#embed {}\n",
    "digit separator": "#define N 1'0 //'\r#include {}\n",
    "dollar": "#$include {}\n",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_include_is_not_in_a_checked_source(name, secret):
    for quoted in (f'"{secret}"', f"<{secret}>"):
        with contextlib.suppress(KernelRefused):
            text = build_cuda.check_source(HIDDEN[name].format(quoted) + BODY).text
            assert "include" not in text and "secret" not in text


@pytest.mark.parametrize("name", ["carriage return", "splice", "raw string", "surrogate"])
def test_a_hidden_include_reads_no_file(name, secret):
    """Whatever the compiler takes for an include, it does not show what it reads."""
    messages = []
    try:
        cpp_build.build(HIDDEN[name].format(f'"{secret}"') + BODY, "f", SIGNATURE)
    except (KernelRefused, KernelBuildError) as error:
        messages.append(str(error))
    assert SECRET not in "".join(messages)


PIECES = st.sampled_from([
    "// ", "/*", "*/", "\\", "\r", "\n", "\r\n", "\v", "\f", "\x85", "\u2028", "\u2029", "\0", "\ufeff",
    "??/", "??=", "%:", "#", 'R"(', ')"', "'", '"', " ", "\t", "x", "#define A ", "#if 0\n", "#endif\n", "u8",
    "1'0", "$", "\u00a0", "\ud800", "é", "\x1a", "#pragma omp ", '_Pragma("', "include <cmath>", "L", "??'",
])  # fmt: skip
INCLUDES = st.sampled_from(
    ["#include {}", "%:include {}", "#include_next {}", "??=include {}", "#\\\ninclude {}"]
)


@given(st.lists(PIECES, max_size=8), INCLUDES, st.lists(PIECES, max_size=4), st.sampled_from('"<'))
@settings(max_examples=300)
def test_what_is_accepted_includes_nothing_else(before, include, after, quote):
    """By the compiler's own word (-H names each file that it opens), whatever stands around an include."""
    path = Path("/etc/passwd")
    quoted = f'"{path}"' if quote == '"' else f"<{path}>"
    written = "".join([*before, include.format(quoted), *after])
    try:
        build_cuda.check_source(written)
    except KernelRefused:
        return
    text = lexer.read(written).text.encode()
    command = [toolchain.compiler(), *toolchain.FLAGS, "-E", "-H", "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert str(path).encode() not in done.stderr
    assert b"root:" not in done.stdout


@given(st.lists(PIECES, max_size=14))
def test_what_was_read_is_read_the_same_again(pieces):
    written = "".join(pieces)
    try:
        source = lexer.read(written)
    except KernelRefused:
        return
    assert lexer.read(source.text) == source
    assert source.text.encode().decode() == source.text  # it can be written in UTF-8
    assert not set("\r\f\v\0\ufeff\u2028\x85") & set(source.text)


def test_lines_of_a_source_stay_its_own():
    source = f"/* one\n two */\n#define A \\\n  1\n// {time.time_ns()}\r\nvoid f(float* x) {{ x[0] = y; }}"
    with pytest.raises(KernelBuildError, match=r"f\.cpp:6:.*‘y’ was not declared"):
        cpp_build.build(source, "f", SIGNATURE)


def python(code, tmp_path, limits=COMPILE, stdin="", **access):
    """What Python, as a tool, makes of `code`."""
    places = [Path(sys.prefix), Path(sys.base_prefix)]
    return tools.run(
        [sys.executable, "-I", "-S", "-c", code],
        tmp_path,
        limits,
        tools.Access(execute=places, **access),
        stdin,
    )


@pytest.fixture(scope="module")
def layers():
    return {name for name, said in tools.protections().items() if said == "on"}


SHUT = {
    "a file of others": ("tools_landlock", "open({secret!r})"),
    "the password file": ("tools_landlock", "open('/etc/passwd')"),
    "the user's home": ("tools_landlock", "import os; os.listdir({home!r})"),
    "the processes": ("tools_landlock", "import os; os.listdir('/proc')"),
    "to write beside": ("tools_landlock", "open({beside!r}, 'w')"),
    "to run a program of others": ("tools_landlock", "import os; os.execv({program!r}, ['x'])"),
    "a socket": ("tools_seccomp", "import socket; socket.socket()"),
    "a local socket": ("tools_seccomp", "import socket; socket.socket(socket.AF_UNIX)"),
    "to signal": ("tools_seccomp", "import os; os.kill(os.getppid(), 0)"),
    "to trace": ("tools_seccomp", "import os; os.pidfd_open(os.getppid())"),
    "a group of its own": (
        "tools_seccomp",
        "import os\nif os.fork() == 0: os.setsid()\nelse: raise SystemExit(os.wait()[1] >> 8)",
    ),
    "new users": (
        "tools_seccomp", "import ctypes; e = ctypes.CDLL(None).unshare(1 << 28); assert not e, 'denied'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHUT)
def test_a_tool_is_shut_in(name, layers, tmp_path, secret):
    layer, code = SHUT[name]
    if layer not in layers:
        pytest.skip(f"no {layer} here")
    inside = tmp_path / "inside"
    inside.mkdir()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    home, beside = str(Path.home()), str(tmp_path / "planted")
    code = code.format(secret=str(secret), beside=beside, program=str(program), home=home)
    done = python(code, inside)
    assert done.code == 1
    assert "PermissionError" in done.errors or "AssertionError: denied" in done.errors, done.errors
    assert set(tmp_path.iterdir()) == {inside, program}


def test_a_tool_has_its_scratch_and_what_it_is_given(tmp_path, secret):
    code = f"import os; open('made', 'w'); os.mkdir('d'); print(input(), open({str(secret)!r}).readline())"
    done = python(code, tmp_path, read=[secret], stdin="hello\n")
    assert (done.code, done.output.split()) == (0, ["hello", SECRET]), done.errors
    assert {path.name for path in tmp_path.iterdir()} == {"made", "d"}


def test_no_secret_of_the_environment_reaches_a_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "sk-secret" not in python("import os; print(dict(os.environ))", tmp_path).output


SMALL = ToolLimits(wall_s=20.0, cpu_s=1, memory=256 << 20, file=1 << 16)
BEYOND = {
    "processor time": ("while :; do :; done", "took too long"),
    "memory": ("exec dd if=/dev/zero of=/dev/null bs=1G count=1", "ended with 1"),
    "a large file": ("exec cat /dev/zero >f", "wrote too much"),
    "a flood of words": ("exec yes", "wrote too much"),
    "a flood of errors": ("exec yes >&2", "wrote too much"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_tool_beyond_its_limits_ends(name, tmp_path):
    code, why = BEYOND[name]
    done = tools.run(["sh", "-c", code], tmp_path, SMALL)
    assert done.why == why, (done.code, done.errors[-300:])
    assert max(len(done.output), len(done.errors)) <= SMALL.file


CROWDS = {
    "children": "import os, time\nwhile True:\n if os.fork() == 0: time.sleep(600)",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "orphans": "import os, signal\nwhile os.fork() or os.fork():\n pass\nsignal.pause()",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()",
}


@pytest.mark.parametrize("name", CROWDS)
def test_a_tool_starts_so_many_processes(name, tmp_path):
    """Whoever runs it: the kernel's own limit does not hold for root."""
    done = python(CROWDS[name], tmp_path, replace(COMPILE, processes=40, wall_s=30.0))
    assert done.why == "started too many processes"
    assert tools.run(["true"], tmp_path, replace(COMPILE, processes=40)).code == 0


def test_what_a_tool_leaves_running_is_killed(tmp_path):
    done = python("import os, time\npid = os.fork()\nif pid: print(pid)\nelse: time.sleep(600)", tmp_path)
    stat, until = Path(f"/proc/{int(done.output)}/stat"), time.monotonic() + 300
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_tools_run_side_by_side(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: tools.run(["echo", str(n)], tmp_path, COMPILE).output, range(24)))
    assert found == [f"{n}\n" for n in range(24)]


def test_the_process_that_starts_tools_and_tools_that_run_end_with_this_one(tmp_path):
    code = f"""
import os, threading, time
from pathlib import Path
from passagent.sandbox import tools
from passagent.sandbox.limits import COMPILE
place = Path({str(tmp_path)!r})
command = ["sh", "-c", "echo $$ > tool; sleep 6000; true"]
threading.Thread(target=tools.run, args=(command, place, COMPILE), daemon=True).start()
while not (place / "tool").exists() or not (place / "tool").read_text():
    time.sleep(0.01)
print(tools._server(os.getpid()).process.pid, (place / "tool").read_text(), flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    paths, until = [Path(f"/proc/{pid}") for pid in done.stdout.split()], time.monotonic() + 300
    assert len(paths) == 2, "the server and a tool that runs"
    while any(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(path.exists() for path in paths)


def test_one_that_was_lost_is_the_machines_fault_and_started_again(tmp_path):
    server = tools._server(os.getpid())
    server.process.kill()
    with contextlib.suppress(InfrastructureError):
        tools.run(["true"], tmp_path, COMPILE)
    assert tools.run(["true"], tmp_path, COMPILE).code == 0
    with pytest.raises(InfrastructureError, match="no_such_compiler cannot be started: FileNotFoundError"):
        tools.run(["no_such_compiler"], tmp_path, COMPILE)


LACKING = """
import sys
sys.path.insert(0, {root!r})
from passagent.sandbox import landlock, privileges, tool_server

def missing(*_):
    raise OSError(38, "Function not implemented")

landlock.restrict = privileges.unshare = missing
tool_server.main(int(sys.argv[1]))
"""


def test_layers_that_a_kernel_lacks_are_told(tmp_path, monkeypatch):
    """As in an old container: tools run all the same, and the result says what is missing."""
    script = tmp_path / "server.py"
    script.write_text(LACKING.format(root=str(Path(tools.__file__).parents[2])))
    monkeypatch.setattr(tools, "_SERVER", script)
    tools._started.cache_clear()
    try:
        told = tools.protections()
        assert {name.removeprefix("tools_") for name, said in told.items() if said != "on"} == {
            "user_namespace", "network_namespace", "ipc_namespace", "landlock",
        }  # fmt: skip
        assert told["tools_landlock"] == "off: Function not implemented"
        assert tools.run(["cat", "/etc/hostname"], tmp_path, COMPILE).code == 0
    finally:
        tools._started.cache_clear()


def test_messages_quote_no_other_file(secret):
    """Also where no layer keeps the compiler from reading it."""
    text = f"""In file included from f.cpp:1:
{secret}:1:1: error: ‘{SECRET}’ does not name a type
    1 | {SECRET}
      | ^~~~
f.cpp: In function ‘void f()’:
f.cpp:3:5: error: ‘y’ was not declared
    3 | y = 1;
      | ^
/usr/include/c++/12/bits/stl_algo.h:9:1: note: candidate
    9 | {SECRET}
In file included from {secret}:1,
                 from f.cpp:1:
{secret}(4): error: identifier "{SECRET}" is undefined
  {SECRET}
/usr/bin/ld: kernel.o: undefined reference
compilation terminated due to -fmax-errors=3."""
    said = toolchain.shown(text, ["/usr/include/"])
    assert SECRET not in said
    assert str(secret) not in said
    for kept in ("f.cpp:3:5", "    3 | y = 1;", "stl_algo.h:9:1: note", "undefined reference", "terminated"):
        assert kept in said
    assert len(toolchain.shown("f.cpp:1:1: error\n" * 10_000, [])) <= MESSAGE


def test_binary_tools_read_their_object_only(tmp_path):
    """objdump and c++filt are started like compilers."""
    (tmp_path / "k.cpp").write_text("int f(int x) { return x + 1; }")
    subprocess.run([toolchain.compiler(), "-c", "k.cpp", "-o", "k.o"], cwd=tmp_path, check=True)
    assert "<_Z1fi>:" in objects._run("objdump", "-d", file=tmp_path / "k.o")
    assert objects.demangled(["_Z1fi", "main"]) == ["f(int)", "main"]
    with pytest.raises(KernelBuildError, match="cannot be read: objdump ended with 1"):
        objects._run("objdump", "-d", str(tmp_path / "k.o"))


STAND_IN = """
import enum, socket

class nvrtcResult(enum.Enum):
    NVRTC_SUCCESS, NVRTC_ERROR_COMPILATION = 0, 6

OK = (nvrtcResult.NVRTC_SUCCESS,)

def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "open"

def nvrtcVersion(): return (*OK, 12, 8)
def nvrtcCreateProgram(source, *rest):
    global log
    text = [tried(lambda: open("/etc/passwd")), tried(socket.socket), tried(lambda: open({header!r}))]
    log = f"f.cu(1): error: {{' '.join(text)}}\\n{secret}(1): error: SECRET\\n  SECRET\\n".encode()
    return (*OK, 1)
def nvrtcAddNameExpression(*_): return OK
def nvrtcCompileProgram(*_): return (nvrtcResult.NVRTC_ERROR_COMPILATION,)
def nvrtcGetProgramLogSize(_): return (*OK, len(log))
def nvrtcGetProgramLog(_, buffer):
    import ctypes
    ctypes.memmove(buffer, log, len(log))
    return OK
"""


def test_nvrtc_runs_shut_in_and_quotes_no_other_file(tmp_path, monkeypatch, layers, secret):
    """A stand-in for its binding tries what a compiler could be made to do; see the same with NVRTC below."""
    header = tmp_path / "include" / "cuda_fp16.h"
    (tmp_path / "cuda/bindings").mkdir(parents=True)
    header.parent.mkdir()
    header.touch()
    code = STAND_IN.format(header=str(header), secret=str(secret))
    (tmp_path / "cuda/bindings/nvrtc.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build_cuda, "_compiler_version", lambda: "stand-in")
    monkeypatch.setattr(build_cuda, "_include_path", lambda: [header.parent])
    with pytest.raises(KernelBuildError) as failed:
        build_cuda.build("__global__ void f(float* x) {}", "f", SIGNATURE, "sm_90")
    assert "SECRET" not in str(failed.value)
    if {"tools_landlock", "tools_seccomp"} <= layers:
        assert "PermissionError PermissionError open" in str(failed.value)


@pytest.mark.gpu
def test_nvrtc_itself_is_shut_in(tmp_path, monkeypatch, secret):
    """It compiles, names the author's lines, and reads its headers only, whatever the checks let by."""
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    good = f"#include <cuda_fp16.h>\n__global__ void f(float* x) {{ x[0] = {time.time_ns() % 999}; }}"
    assert build_cuda.build(good, "f", SIGNATURE, "sm_80").stat().st_size > 100
    with pytest.raises(KernelBuildError, match=r'f\.cu\(2\): error.*"y" is undefined'):
        build_cuda.build("\n__global__ void f(float* x) { x[0] = y; }", "f", SIGNATURE, "sm_80")
    monkeypatch.setattr(lexer, "check", lambda *_: None)
    with pytest.raises(KernelBuildError) as failed:
        build_cuda.build(f'#include "{secret}"\n__global__ void f(float* x) {{}}', "f", SIGNATURE, "sm_80")
    assert SECRET not in str(failed.value)
