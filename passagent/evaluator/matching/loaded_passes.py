"""Load a candidate: write its files, import its passes, trace their patterns.

This runs where a candidate is recorded. The files become the package `pass_dir`; `import helper`,
`from helper import f` and `from pass_dir.helper import f` name the same module object.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx

from passagent.errors import nearest
from passagent.evaluator.candidate import HELPER, HELPER_HEAD
from passagent.evaluator.matching.pattern import PassLoadError, trace_pattern
from passagent.evaluator.result import MANIFEST, Candidate

__all__ = ["LoadedPass", "PassLoadError", "load_passes"]

PACKAGE = "pass_dir"
_FUNCTIONS = ("pattern", "replacement_args", "replacement_func")


@dataclass(frozen=True)
class PlannedPass:
    """A pass of which only what it matches is here: its calls are plans."""

    name: str
    file: str
    pattern_graph: fx.Graph


@dataclass(frozen=True)
class LoadedPass(PlannedPass):
    """A pass ready to be applied."""

    replacement_args: Callable[..., Any]
    replacement_func: Callable[..., Any]
    """The result of the pass's `replacement_func()`."""


def load_passes(candidate: Candidate, root: Path) -> list[LoadedPass]:
    """The passes of the manifest, in its order; the files are written under `root/pass_dir`.

    Raises PassLoadError for a bad manifest, files that do not import, missing functions, patterns that cannot
    be traced, a line for each, and for more than one replacement function.
    """
    names = _manifest(candidate)
    if candidate.files.get(HELPER, "").startswith(HELPER_HEAD):
        candidate = Candidate(candidate.files | {HELPER: "from passagent.kernels import *\n"})
    candidate.write(root / PACKAGE)
    _install(candidate, root)
    passes, errors = [], dict[str, PassLoadError]()
    for name in names:
        try:
            passes.append(_load(name, candidate, root))
        except PassLoadError as error:
            errors.setdefault(str(error), error)
    if errors:
        only, *others = errors.values()
        raise PassLoadError("\n".join(errors)) if others else only
    functions = {id(loaded.replacement_func): loaded.name for loaded in passes}
    if len(functions) > 1:
        first, second = list(functions.values())[:2]
        raise PassLoadError(
            f"passes {first} and {second} return different functions from replacement_func; let all passes "
            "return one function and tell the variants apart by a constant in replacement_args"
        )
    return passes


def _manifest(candidate: Candidate) -> list[str]:
    text = candidate.files.get(MANIFEST)
    if text is None:
        raise PassLoadError(
            f'{MANIFEST} is missing; write the names of the pass files, such as ["FuseAddNorm"]'
        )
    try:
        names = json.loads(text)
    except ValueError as error:
        raise PassLoadError(f"{MANIFEST}: not valid JSON: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise PassLoadError(f'{MANIFEST}: must be a list of pass names, such as ["FuseAddNorm"]')
    modules = [file.removesuffix(".py") for file in candidate.files if file.endswith(".py")]
    for name in names:
        if name not in modules:
            advice = "; write the name without .py" if name.endswith(".py") else nearest(name, modules)
            raise PassLoadError(f"{MANIFEST}: no file {name}.py{advice}")
    if len(set(names)) < len(names):
        raise PassLoadError(f"{MANIFEST}: names a pass twice")
    return names


def _install(candidate: Candidate, root: Path) -> None:
    """Make `pass_dir` this candidate's package, in place of an earlier candidate's."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(candidate, root))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the package `pass_dir` from a candidate's texts; the files on disk serve tracebacks."""

    def __init__(self, candidate: Candidate, root: Path) -> None:
        self.root = root
        self.sources = {PACKAGE: (PACKAGE, "", True)}
        for file, text in candidate.files.items():
            if file.endswith(".py"):
                *folders, stem = [PACKAGE, *file.removesuffix(".py").split("/")]
                for depth in range(1, len(folders) + 1):
                    folder = ".".join(folders[:depth])
                    self.sources.setdefault(folder, (folder.replace(".", "/"), "", True))
                is_package = stem == "__init__"
                name = ".".join(folders if is_package else [*folders, stem])
                self.sources[name] = (f"{PACKAGE}/{file}", text, is_package)
        self.bare = {name.split(".")[1] for name in self.sources if "." in name}
        self.builtins = vars(builtins) | {"__import__": self.imported}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.sources:
            return None
        file, _, is_package = self.sources[fullname]
        location = str(self.root / file)
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=location, is_package=is_package)
        spec.has_location = location.endswith(".py")
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        file, text, _ = self.sources[module.__name__]
        vars(module)["__builtins__"] = self.builtins
        try:
            code = compile(text, str(self.root / file), "exec")
        except (MemoryError, RecursionError) as error:
            name = file.removeprefix(f"{PACKAGE}/")
            raise PassLoadError(f"{name}: nested too deeply to be compiled") from error
        exec(code, vars(module))

    def imported(
        self,
        name: str,
        globals: dict[str, Any] | None = None,
        locals: dict[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """`__import__` of the candidate's modules: a bare name of one of them means `pass_dir.<name>`."""
        top = name.split(".", maxsplit=1)[0]
        if level or top not in self.bare:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{PACKAGE}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[f"{PACKAGE}.{top}"]


def _load(name: str, candidate: Candidate, root: Path) -> LoadedPass:
    file = f"{name}.py"
    try:
        module = importlib.import_module(f"{PACKAGE}.{name.replace('/', '.')}")
    except PassLoadError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        raise PassLoadError(_where(error, file, root)) from error
    missing = [name for name in _FUNCTIONS if not isinstance(getattr(module, name, None), types.FunctionType)]
    if missing:
        raise PassLoadError(f"{file}: defines no function {', '.join(missing)}")
    replacement = _replacement(module, file, root)
    source_file = Path(module.pattern.__code__.co_filename)
    if (root / PACKAGE) not in source_file.parents:
        raise PassLoadError(f"{file}: pattern must be defined in the candidate's own files")
    relative = source_file.relative_to(root / PACKAGE).as_posix()
    pattern = trace_pattern(module.pattern, candidate.files[relative], relative)
    parameters = [node.target for node in pattern.nodes if node.op == "placeholder"]
    try:
        inspect.signature(module.replacement_args).bind(*parameters)
    except TypeError as error:
        takes = f"{file}: replacement_args must take pattern's parameters ({', '.join(map(str, parameters))})"
        raise PassLoadError(f"{takes}: {error}") from error
    return LoadedPass(name, file, pattern, module.replacement_args, replacement)


def _replacement(module: types.ModuleType, file: str, root: Path) -> Callable[..., Any]:
    try:
        function = module.replacement_func()
    except Exception as error:
        raise PassLoadError(_where(error, file, root)) from error
    plain = inspect.unwrap(function) if callable(function) else function
    if not isinstance(plain, types.FunctionType) or root not in Path(plain.__code__.co_filename).parents:
        kind = getattr(function, "__name__", type(function).__name__)
        raise PassLoadError(
            f"{file}: replacement_func returned {kind}; return a function that the candidate's files define"
        )
    if plain.__name__ == "<lambda>" or plain.__closure__:
        raise PassLoadError(
            f"{file}: replacement_func must return a function of the module, no lambda or nested def"
        )
    return function


def _where(error: BaseException, file: str, root: Path) -> str:
    """`file:line: Kind: message`, by the innermost of the candidate's own frames; of `file` without one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if root in Path(f.filename).parents]
    if isinstance(error, SyntaxError) and error.filename and root in Path(error.filename).parents:
        path, line, message = error.filename, error.lineno, error.msg
    elif frames:
        path, line, message = frames[-1].filename, frames[-1].lineno, str(error)
    else:
        return f"{file}: {type(error).__name__}: {error}"
    return f"{Path(path).relative_to(root / PACKAGE).as_posix()}:{line}: {type(error).__name__}: {message}"
