"""Imports between the packages of the evaluation go one way."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    "confine", "kernels", "evaluator", "evaluator.hardware", "evaluator.matching", "evaluator.integrity",
    "evaluator.correctness", "plan", "evaluator.runner", "evaluator.reference", "evaluator.timing",
    "evaluator.judging", "evaluator.service",
]  # fmt: skip
"""From the lowest: each imports from those before it, and from itself."""


def layer(module: str) -> str | None:
    """The package of those above that a module is in."""
    parts = module.split(".")[1:]
    if parts[:1] == ["evaluator"]:
        is_inside = len(parts) > 2 or f"evaluator.{parts[-1]}" in LAYERS
        return ".".join(parts[:2]) if is_inside else "evaluator"
    return parts[0] if parts and parts[0] in LAYERS else None


def imported(path: Path) -> set[str]:
    """The modules of passagent that a file imports; its functions' own imports, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("passagent"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                place = ROOT / inner.replace(".", "/")
                is_module = place.with_suffix(".py").exists() or place.is_dir()
                found.add(inner if is_module else str(node.module))
    return found


@pytest.mark.parametrize("own", LAYERS)
def test_a_package_imports_from_those_below_it(own):
    below = set(LAYERS[: LAYERS.index(own) + 1])
    wrong = []
    for path in sorted((ROOT / "passagent").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "passagent.evaluator.__init__" or layer(module) != own:
            continue  # the evaluator's own door opens to all of it
        wrong += [f"{module} -> {one}" for one in imported(path) if (layer(one) or own) not in below]
    assert wrong == []
