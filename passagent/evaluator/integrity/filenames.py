"""A candidate's files as names and bytes: what stays inside its directory, and how much there may be."""

from __future__ import annotations

import re
from collections import Counter

from passagent.evaluator.result import Violation
from passagent.evaluator.sizes import FILES

_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*(?:[A-Za-z0-9_-]+\.py|[A-Za-z0-9_.-]+\.(?:json|md|txt))")


def check_files(files: dict[str, str]) -> list[Violation]:
    """Names that stay inside the pass directory and are different modules, and a bounded size."""
    size = sum(len(part.encode(errors="surrogatepass")) for file in files.items() for part in file)
    most_bytes, most_files = FILES["bytes of files and names"], FILES["files"]
    if size > most_bytes or len(files) > most_files:
        message = (
            f"the candidate is {len(files)} files of {size} bytes; write at most {most_files} "
            f"files of {most_bytes} bytes together"
        )
        return [Violation(rule="too_large", file=min(files)[:200], line=1, message=message)]
    message = "the file's name is not of letters, digits and `_`; name it like a module, inside the directory"
    same = "another file is the same module, and only one of the two can be imported; use another name"
    wrong = {name: message for name in files if not _NAME.fullmatch(name)}
    modules = {name: _module(name) for name in files if name.endswith(".py") and name not in wrong}
    counts = Counter(modules.values())
    wrong |= {name: same for name, module in modules.items() if counts[module] > 1}
    return [
        Violation(rule="file_name", file=name[:200], line=1, message=wrong[name]) for name in sorted(wrong)
    ]


def _module(name: str) -> str:
    """The module that a file is, below the candidate's package: empty for the package's own `__init__.py`."""
    folder, _, last = name.removesuffix(".py").rpartition("/")
    return ".".join(part for part in (*folder.split("/"), last if last != "__init__" else "") if part)
