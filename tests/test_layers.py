"""Imports go one way: no circles anywhere, and between the packages of the evaluation from the lowest up."""

import ast
import functools
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    "sandbox", "kernels", "evaluator", "evaluator.hardware", "evaluator.matching", "evaluator.integrity",
    "evaluator.correctness", "passes", "plan", "evaluator.runner", "evaluator.reference", "evaluator.timing",
    "evaluator.judging", "evaluator.service", "experience.profiling",
    "evaluator.fleet", "tasks.extract", "data.pipeline",
]  # fmt: skip
"""From the lowest: each imports from those before it, and from itself."""

CIRCLES = {
    "passagent.evaluator.target": {"passagent.plan.model"},
    "passagent.extend": {"passagent.config", "passagent.search.islands", "passagent.search.stop"},
}
"""Imports for types alone that still run back. None may be added."""


def layer(module: str) -> str | None:
    """The package of those above that a module is in."""
    own = module.removeprefix("passagent.")
    return max((name for name in LAYERS if f"{own}.".startswith(f"{name}.")), key=len, default=None)


def modules() -> dict[str, Path]:
    """The modules of passagent, by their dotted names; a package's own is its `__init__`."""
    found = {}
    for path in sorted((ROOT / "passagent").rglob("*.py")):
        found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file; trees of all files would fill the memory that the collector looks through."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    """The modules of passagent that a file imports; imports of functions and for types, too."""
    names: set[str] = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if alias.name.startswith("passagent"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("passagent"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                place = ROOT / inner.replace(".", "/")
                is_module = place.with_suffix(".py").exists() or place.is_dir()
                names.add(inner if is_module else str(node.module))
    return names


def test_no_import_comes_back_to_where_it_began():
    try:
        ways = {name: imported(path) - {name, *CIRCLES.get(name, ())} for name, path in modules().items()}
        ways["passagent"] = set()  # its door: it imports what is asked for, when it is asked for
        TopologicalSorter(ways).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_import_names_a_module_that_is_there():
    """A function's own import is not run by importing its module, and mypy takes an unknown one for Any."""
    known = modules()
    missing = []
    for name, path in known.items():
        for node in imports(path):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("passagent") and module not in known:
                missing.append(f"{name} -> {module}")
    assert missing == []


def test_no_two_modules_share_a_name():
    """A package's own module may have its name: judging/judging.py."""
    places = defaultdict(set)
    for name, path in modules().items():
        package, _, last = name.rpartition(".")
        own = package.endswith(f".{last}")
        if not own and (path.name != "__init__.py" or package):
            places[last].add(name)
    assert {last: names for last, names in places.items() if len(names) > 1} == {}


@pytest.mark.parametrize("own", LAYERS)
def test_a_package_imports_from_those_below_it(own):
    below = set(LAYERS[: LAYERS.index(own) + 1])
    wrong = []
    for path in sorted((ROOT / "passagent").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "passagent.evaluator.__init__" or layer(module) != own:
            continue  # the evaluator's own door opens to all of it
        others = imported(path) - CIRCLES.get(module, set())
        wrong += [f"{module} -> {one}" for one in others if (layer(one) or own) not in below]
    assert wrong == []


def test_the_expert_knows_of_models_only_their_interface():
    """It stands below what chooses a model, and asks no search, no agent and no store."""
    below = {"expert", "evaluator", "plan", "tasks", "kernels", "config", "sandbox", "errors"}
    wrong = []
    for path in sorted((ROOT / "passagent" / "expert").rglob("*.py")):
        asked = imported(path) - {"passagent.models.types"}
        wrong += [f"{path.name} -> {one}" for one in asked if one.split(".")[1] not in below]
    assert wrong == []
