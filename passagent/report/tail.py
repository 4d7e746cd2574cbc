"""What happens in a run, a line each."""

from __future__ import annotations

import json
from typing import Any

from passagent.agent.prompt import short_note
from passagent.report.happenings import Happening
from passagent.report.text import number, percent, printable, thousands


def happening_line(one: Happening, roles: dict[int, str]) -> str:
    """`11-21 15:17:33 island 0 (fusion) node 7: ok, AS 1.310, +8.2% over node 3: ...`; the time is UTC."""
    at = one.at[5:19].replace("T", " ")
    where = ""
    if "island" in one.about:
        island = one.about["island"]
        where = f"island {island} ({roles[island]}) " if island in roles else "seeds "
    return printable(f"{at} {where}{_said(one.kind, one.about)}")


def _said(kind: str, about: dict[str, Any]) -> str:
    return {
        "joined": _joined,
        "left": lambda about: f"{_process(about)} left: {about['left_because']}",
        "episode_begun": _begun,
        "episode_ended": _ended,
        "reply": _reply,
        "request_failed": _failed,
        "proposed": _proposed,
        "judged": _judged,
        "migration": lambda a: f"migration of node {a['node']} to island {a['to_island']}: {a['reason']}",
        "measured_again": _measured_again,
        "hint_written": lambda about: f"episode {about['episode']}: hint {about['hint']} distilled",
    }[kind](about)


def _joined(about: dict[str, Any]) -> str:
    changes = "; ".join(json.loads(about["changes"]))
    return f"{_process(about)} joined, passagent {about['version']}{f': {changes}' if changes else ''}"


def _process(about: dict[str, Any]) -> str:
    host, pid, _ = about["owner"].rsplit(":", 2)
    return f"pid {pid} on {host}"


def _begun(about: dict[str, Any]) -> str:
    start = "the task"
    if about["parent"] is not None:
        start = f"node {about['parent']} (AS {number(about['parent_as'])})"
    return f"episode {about['episode']} begins from {start}, {about['model']}"


def _ended(about: dict[str, Any]) -> str:
    if about["best_node"] is None:
        left = "nothing correct"
    else:
        gain = ""
        if about["parent_status"] == "ok":
            gain = f", {percent(about['gain'])} over node {about['parent']}"
        left = f"best node {about['best_node']}, AS {number(about['best_as'])}{gain}"
    return f"episode {about['episode']} ended ({about['end_reason']}, {about['steps']} steps): {left}"


def _reply(about: dict[str, Any]) -> str:
    took = f"{number(about['latency_s'], 1)} s"
    tokens = f"{thousands(about['input_tokens'])} in, {thousands(about['output_tokens'])} out"
    cost = "" if about["cost"] is None else f", ${about['cost']:.4f}"
    who = about["model"] if about["role"] == "agent" else f"{about['model']} as {about['role']}"
    return f"episode {about['episode']}: reply of {who} ({took}, {tokens}{cost})"


def _failed(about: dict[str, Any]) -> str:
    attempt = f"attempt {about['attempt']}, " if about["attempt"] > 1 else ""
    error = short_note(" ".join((about["error"] or "").split()), 160)
    return f"episode {about['episode']}: {about['model']} ({attempt}{about['state']}): {error}"


def _proposed(about: dict[str, Any]) -> str:
    repeat = f", equal to node {about['repeat_of']}" if about["repeat_of"] else ""
    return f"node {about['node']} proposed{repeat}"


def _judged(about: dict[str, Any]) -> str:
    gain = ""
    if about["status"] == about["parent_status"] == "ok" and about["as_score"] and about["parent_as"]:
        gain = f", {about['as_score'] / about['parent_as'] - 1:+.1%} over node {about['parent']}"
    said = short_note(about["note"], 70)
    if about["status"] != "ok" and about["diagnosis"]:
        said = short_note(json.loads(about["diagnosis"])["text"], 110)
    score = number(about["as_score"])
    return f"node {about['node']}: {about['status']}, AS {score}{gain}{f': {said}' if said else ''}"


def _measured_again(about: dict[str, Any]) -> str:
    first, again = number(about["first_as"]), number(about["as_score"])
    said = f"{about['status']}, AS {again} (first {first})"
    return f"finalist node {about['node']} measured again, round {about['round']}: {said}"
