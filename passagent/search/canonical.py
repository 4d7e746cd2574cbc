"""When two candidates are the same program: all is equal but comments, docstrings and formatting."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping


def canonical_key(files: Mapping[str, str], candidate_key: str) -> str:
    """A hash of the candidate's program; `candidate_key` for a candidate that cannot be parsed.

    C++ and CUDA sources are strings of the program, so their comments and spaces count.
    """
    try:
        program = {name: _program(text) if name.endswith(".py") else text for name, text in files.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return candidate_key
    return hashlib.sha256(json.dumps(program, sort_keys=True).encode()).hexdigest()


def _program(text: str) -> str:
    """The source without comments and docstrings, formatted by ast.unparse. Raises what ast.parse raises."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
