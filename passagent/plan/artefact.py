"""A recording as files, by content: what evaluation stores, what `best` writes, what can be replayed.

plan.json                passes, patterns, plans; texts and bytes by their files' names kernels/<digest>.ttir
what is compiled of a Triton kernel; its text, for people, in the .py of that name kernels/<digest>.cpp
C++ (.cu: CUDA C++) constants/<digest>.b64   bytes in base64

A digest is the SHA-256 of the file's text, so a file that was edited by hand is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from passagent.errors import UsageError
from passagent.evaluator.candidate import PLAN
from passagent.plan.model import Kernel, Recording
from passagent.plan.recorded_pattern import check_calls

_KERNEL = TypeAdapter[Kernel](Kernel)
_SUFFIX = {"cpp": ".cpp", "cuda": ".cu", "triton": ".py"}


class Artefact(NamedTuple):
    """A recording that was read, and which of its files are not as they were written."""

    recording: Recording
    edited: list[str]


def write(recording: Recording) -> dict[str, str]:
    """The files of a recording, by their names."""
    files: dict[str, str] = {}

    def placed(folder: str, text: str, suffix: str) -> str:
        name = f"{folder}/{hashlib.sha256(text.encode()).hexdigest()}{suffix}"
        files[name] = text
        return name

    data = recording.model_dump(mode="json")
    for plan in (plan for recorded in data["passes"] for plan in recorded["plans"]):
        for kernel in plan["kernels"].values():
            kernel["text"] = placed("kernels", kernel["text"], _SUFFIX[kernel["kind"]])
            if "ttir" in kernel:
                kernel["ttir"] = placed("kernels", kernel["ttir"], ".ttir")
        constants = plan["constants"].items()
        plan["constants"] = {key: placed("constants", text, ".b64") for key, text in constants}
    files[PLAN] = json.dumps(data, indent=1, sort_keys=True) + "\n"
    return files


def read(files: Mapping[str, str]) -> Artefact:
    """The recording that `files` are. An edited kernel is taken as it is. Raises UsageError."""
    digests = {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items() if name != PLAN
    }
    edited = sorted(name for name, digest in digests.items() if digest not in name)

    def text_of(name: Any) -> str:
        if name not in files:
            raise UsageError(f"{PLAN}: names {name!r:.90}, which is not here; copy the whole directory")
        return files[name]

    try:
        data = json.loads(files[PLAN])
        for plan in (plan for recorded in data["passes"] for plan in recorded["plans"]):
            plan["constants"] = {key: text_of(name) for key, name in plan["constants"].items()}
            names = {}
            for key, kernel in plan["kernels"].items():
                for part in {"text", "ttir"} & kernel.keys():
                    kernel[part] = text_of(kernel[part])
                names[key] = _KERNEL.validate_json(json.dumps(kernel)).digest()
            plan["kernels"] = {names[key]: kernel for key, kernel in plan["kernels"].items()}
            plan["steps"] = _renamed(plan["steps"], names)
        recording = Recording.model_validate_json(json.dumps(data))
        check_calls(recording)
        return Artefact(recording, edited)
    except UsageError:
        raise
    except Exception as error:  # the files are anybody's
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UsageError(f"{PLAN}: is no recording: {why[:200]}") from error


def _renamed(steps: Any, names: dict[str, str]) -> Any:
    """The steps, with the kernels that they launch by other digests."""
    if isinstance(steps, list):
        return [_renamed(step, names) for step in steps]
    if isinstance(steps, dict):
        return {
            key: names.get(value, value) if key == "kernel" else _renamed(value, names)
            for key, value in steps.items()
        }
    return steps
