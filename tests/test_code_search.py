"""The tool search_code: strings and names over samples and the installed Triton's sources."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from passagent.agent.toolbox import MAX_CODE, search_code
from passagent.agent.workspace import ToolError
from passagent.config import EvaluatorConfig
from passagent.evaluator.target import target_of
from passagent.experience import code_search
from passagent.experience.code_search import files

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
GPU, CPU = (target_of(EvaluatorConfig(device=device)) for device in ("cuda", "cpu"))


def ask(query: str, target: Any = GPU, **more: str) -> str:
    return asyncio.run(search_code(target).run({"query": query} | more, "call")).text


@needs_triton
def test_a_string_and_a_name_are_found() -> None:
    [hit] = [line for line in ask("def program_id(").splitlines() if "triton/language/core.py:" in line]
    assert ask("a string that no file (holds)").startswith("nothing found")
    assert "samples/cuda_quick_gelu/quick_gelu.py" in ask("samples/", kind="file").splitlines()
    line = int(hit.split(":")[1])
    shown = ask(f"triton/language/core.py:{line}", kind="file")
    assert shown.startswith(f"{line}: def program_id(")


@needs_triton
def test_long_answers_are_cut_and_a_cursor_goes_on() -> None:
    name = "triton/language/core.py"
    parts, more = [], dict[str, str]()
    while True:
        part = ask(name, kind="file", **more)
        assert len(part) <= MAX_CODE + 40
        text, cut, cursor = part.rpartition("... cursor: ")
        parts.append(text if cut else part)
        if not cut:
            break
        more = {"cursor": cursor}
    lines = files()[name].read_text().splitlines()
    assert len(parts) > 2
    assert "".join(parts) == "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))
    assert "more than 400 lines match" in asyncio.run(code_search.search("import", "string"))
    with pytest.raises(ToolError, match="cursor '-1'"):
        ask("x", cursor="-1")


@pytest.mark.parametrize(
    ("query", "kind", "reason"),
    [
        (" ", "string", "1 to 500 characters"),
        ("x" * 501, "string", "1 to 500 characters"),
        ("no/such/file", "file", "no file's name"),
        ("../../etc/passwd", "file", "no file's name"),
    ],
)
def test_what_cannot_be_looked_for_is_said_in_a_line(query: str, kind: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason) as caught:
        ask(query, kind=kind)
    assert "\n" not in str(caught.value)


def test_a_target_sees_only_what_works_there() -> None:
    for_cpu = files(CPU)
    assert for_cpu and all(CPU.admits(name + path.read_text()) for name, path in for_cpu.items())
    assert "samples/cpu_quick_gelu/quick_gelu.py" in for_cpu and "samples/cpu_quick_gelu" not in str(
        files(GPU)
    )
    assert ask("tl.load", CPU).startswith("nothing found")
    assert "samples/cuda_add_layer_norm" in ask("tl.load")
