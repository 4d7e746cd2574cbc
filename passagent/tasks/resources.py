"""Where example tasks, prompts, knowledge and configs are: in the wheel, the checkout, or a user's directory.

A user's directory of the same layout (`PASSAGENT_RESOURCES=DIR`) overrides the shipped files one by one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from passagent.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's


def roots() -> tuple[Path, ...]:
    """Directories searched, the first that holds a file wins."""
    user, shipped = os.environ.get("PASSAGENT_RESOURCES"), _PACKAGE / "_data"
    root = shipped if shipped.is_dir() else _PACKAGE.parent
    if not user:
        return (root,)
    if not Path(user).is_dir():
        raise UsageError(f"PASSAGENT_RESOURCES={user}: no such directory; unset it or create it")
    return Path(user), root


def find(relative: str) -> Path:
    """The file `relative` (such as `prompts/system.j2`). Raises UsageError if there is none."""
    for root in roots():
        path = root / relative
        if path.is_file():
            return path
    raise UsageError(f"{relative}: not found in {', '.join(map(str, roots()))}")


def glob(pattern: str) -> Iterator[tuple[str, Path]]:
    """`(relative name, path)` of every file that matches, overrides applied, in order of name.

    What Python compiled beside the files (`__pycache__`, which pip makes when it installs) is not a resource.
    """
    files: dict[str, Path] = {}
    for root in reversed(roots()):
        for path in root.glob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                files[path.relative_to(root).as_posix()] = path
    yield from sorted(files.items())


def read_yaml(path: Path) -> Any:
    """Return what a YAML file holds. Raises UsageError, in one line, for one that is none."""
    try:
        text = path.read_text(encoding="utf-8")
        try:
            return yaml.load(text, _QUICK)
        except yaml.YAMLError:
            return yaml.safe_load(text)  # it raises an error that names the right line
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where}: not valid YAML: {reason.splitlines()[0]}") from error
