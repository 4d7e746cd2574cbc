"""A pass's text as a project takes it: black's layout, sorted imports, a docstring that says what is known.

ruff's formatter lays text out as black does.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection

import black

_MODE = black.Mode(target_versions={black.TargetVersion.PY311, black.TargetVersion.PY312})
_PLAN_NOTE = re.compile(r"\[plan: \{.*?\}\]")
"""In a docstring of the expert's, which is a note to itself and no more."""


def formatted(text: str) -> str:
    """Python text in black's layout. Raises ValueError for what is no Python."""
    try:
        return black.format_str(text, mode=_MODE)
    except (black.InvalidInput, IndentationError) as error:
        raise ValueError(f"is no Python that can be laid out: {error}") from error


def edited(text: str, about: str, beside: Collection[str]) -> str:
    """A file with `about` at the end of its docstring, its imports in order, and laid out.

    `beside`: names of the modules that lie beside it. Raises ValueError for what is no Python.
    """
    try:
        return formatted(_with_docstring(_with_imports(text, beside), about))
    except SyntaxError as error:
        raise ValueError(f"is no Python: {error.msg} (line {error.lineno})") from error


def _with_docstring(text: str, about: str) -> str:
    tree = ast.parse(text)
    said = (ast.get_docstring(tree) or "").strip()
    if _PLAN_NOTE.search(said):
        said = ""
    if said and said[-1] not in ".!?":
        said += "."
    paragraphs = [part for part in (said, about.strip()) if part]
    if not paragraphs:
        return text
    body = "\n\n".join(paragraphs).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    end = "\n" if "\n" in body else ""
    doc = f'"""{body[0].upper()}{body[1:]}{end}"""'
    lines = text.splitlines()
    first = tree.body[0] if tree.body else None
    if ast.get_docstring(tree) is not None and first is not None:
        lines[first.lineno - 1 : first.end_lineno] = [doc]
        return "\n".join(lines) + "\n"
    place = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join([*lines[:place], doc, "", *lines[place:]]) + "\n"


def _with_imports(text: str, beside: Collection[str]) -> str:
    """The imports at the head in isort's order, without those that nothing uses.

    Where a comment stands among them they stay as they are: it may be about their order.
    """
    tree, lines = ast.parse(text), text.splitlines()
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    head = list[ast.Import | ast.ImportFrom]()
    for node in body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        head.append(node)
    if not head:
        return text
    start, end = head[0].lineno - 1, head[-1].end_lineno or 0
    if "#" in "\n".join(lines[start:end]):
        return text
    used = _used(tree)
    sections: dict[int, dict[str, list[ast.alias]]] = {}
    for node in head:
        for section, place, alias in _taken(node, used, beside):
            sections.setdefault(section, {}).setdefault(place, []).append(alias)
    blocks = [
        "\n".join(_line(place, section[place]) for place in sorted(section, key=_order))
        for _, section in sorted(sections.items())
    ]
    rest = "\n".join(lines[end:]).lstrip("\n")
    gap = "\n\n\n" if re.match(r"(async def|def|class)\b|@", rest) else "\n\n"
    return "\n".join(lines[:start]) + "\n" + "\n\n".join(blocks) + gap + rest + "\n"


def _taken(
    node: ast.Import | ast.ImportFrom, used: set[str], beside: Collection[str]
) -> list[tuple[int, str, ast.alias]]:
    """What an import takes and something uses: its section, where it is from, and the name."""
    module = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    stays = module == "__future__"
    taken = [alias for alias in node.names if stays or alias.name == "*" or _binds(alias) in used]
    if isinstance(node, ast.Import):
        return [(_section(alias.name, beside), f"import {_alias(alias)}", alias) for alias in taken]
    return [(_section(module, beside), f"from {module}", alias) for alias in taken]


def _line(place: str, names: list[ast.alias]) -> str:
    if place.startswith("import "):
        return place
    members = list(dict.fromkeys(_alias(one) for one in sorted(names, key=lambda one: _member(one.name))))
    plain = [", ".join(member for member in members if " as " not in member)]
    each = [*filter(None, plain), *(member for member in members if " as " in member)]
    return "\n".join(f"{place} import {member}" for member in each)


def _used(tree: ast.Module) -> set[str]:
    """Names that the module speaks of outside its imports, those in the texts of its annotations, too."""
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    quoted = {word for text in texts if len(text) < 200 for word in re.findall(r"\w+", text)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | quoted


def _binds(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _alias(alias: ast.alias) -> str:
    return alias.name + (f" as {alias.asname}" if alias.asname and alias.asname != alias.name else "")


def _section(module: str, beside: Collection[str]) -> int:
    top = module.partition(".")[0]
    if module == "__future__":
        return 0
    if not top:
        return 4
    return 1 if top in sys.stdlib_module_names else 3 if top in beside else 2


def _order(line: str) -> tuple[bool, str, str]:
    """`import` before `from`, then by module."""
    kind, module, *_ = line.split()
    return kind == "from", module.lower(), module


def _member(name: str) -> tuple[int, str, str]:
    """Constants, then classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name.lower(), name
