"""What the names of a candidate's files stand for: imported modules, its own definitions, locals."""

from __future__ import annotations

import ast
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from passagent.evaluator.guards import records, rules, unused
from passagent.evaluator.guards.trees import Meanings
from passagent.evaluator.target import CUDA, Target

OWN = "pass_dir"


@dataclass
class File:
    """A parsed file: its imports (local name to full name) and its own top-level definitions."""

    name: str
    module: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    """Module-level assignments: name to the assigned expression (the last one)."""
    choices: dict[str, list[ast.expr]] = field(default_factory=dict)
    """Module-level names for functions of kernels that depend on a version: all that they may stand for."""
    namespaces: dict[str, set[str]] = field(default_factory=dict)
    """Module-level classes: name to the names that their bodies assign."""
    others: set[str] = field(default_factory=set)
    """Names that are bound elsewhere in the file: in a block, by unpacking."""

    def full(self, name: str) -> str:
        """The full name of one of its own."""
        return f"{OWN}.{self.module}.{name}" if self.module else f"{OWN}.{name}"

    def package(self, level: int) -> list[str]:
        """The package that `level` leading dots of an import stand for, below the candidate's own."""
        parts = self.module.split(".") if self.module else []
        above = level - 1 if self.name.rpartition("/")[2] == "__init__.py" else level
        return parts[: max(0, len(parts) - above)]


class World:
    """All files of a candidate that parse; `host_extensions`: its author is trusted with native host code."""

    def __init__(self, sources: dict[str, str], host_extensions: bool = False, target: Target = CUDA) -> None:
        self.host_extensions, self.target = host_extensions, target
        self.files: dict[str, File] = {}
        trees, self.too_large = unused.parsed(sources)
        for name, tree in trees.items():
            module = module_of(name)
            self.files[module] = File(name, module, tree)
        self._mentioned: set[str] = set()
        self.allocators: set[str] = set()
        """Functions of the candidate's that Triton is told to ask for memory."""
        self._known: dict[tuple[str, int], bool] = {}
        self._meanings: dict[ast.AST, Meanings] = {}
        self._resolved: dict[str, str] | None = None
        """Full names that were asked for, as soon as all files are known."""
        self.tops = {module.split(".")[0] for module in self.files if module}
        self.fields: set[str] = set()
        """Names that classes and named tuples of any file give to what they hold."""
        self.classes: set[str] = set()
        """Full names of its classes."""
        for file in self.files.values():
            self._fill(file)
            self.fields.update(*file.namespaces.values())
        self._resolved = {}
        folders = [[OWN, *module.split(".")] for module in self.files if module]
        self._modules = {
            OWN,
            *(".".join(parts[:end]) for parts in folders for end in range(1, len(parts) + 1)),
        }

    def mentioned(self) -> set[str]:
        """Every word that could name something that a file imports: in whatever file, and for whatever."""
        if not self._mentioned:
            for file in self.files.values():
                for node in ast.walk(file.tree):
                    if isinstance(node, ast.Name):
                        self._mentioned.add(node.id)
                    elif isinstance(node, ast.Attribute):
                        self._mentioned.add(node.attr)
                    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                        self._mentioned.add(node.value)  # getattr(helper, "os")
                    elif isinstance(node, ast.ImportFrom) and (
                        node.level or (node.module or "").split(".")[0] in self.tops
                    ):
                        self._mentioned.update(alias.name for alias in node.names)
        return self._mentioned

    def meanings(self, scope: ast.AST) -> Meanings:
        """What gives names a meaning in a function or module."""
        if scope not in self._meanings:
            self._meanings[scope] = Meanings(scope)
        return self._meanings[scope]

    def once(self, question: str, node: ast.AST, answer: Callable[[], bool]) -> bool:
        """The answer to a question about a node, asked once; False while it is being found."""
        key = (question, id(node))
        if key not in self._known:
            self._known[key] = False
            self._known[key] = answer()
        return self._known[key]

    def canonical(self, module: str, file: File, level: int = 0) -> str:
        """Full name of a module that `file` imports: the candidate's own ones begin with `pass_dir.`."""
        if level:
            return ".".join([OWN, *file.package(level), *([module] if module else [])])
        if module.split(".", maxsplit=1)[0] in self.tops:
            return f"{OWN}.{module}"
        return module

    def resolve(self, name: str) -> str:
        """The full name behind names that a file of the candidate imports from elsewhere."""
        if self._resolved is None:
            return self._resolve(name, 0)
        if name not in self._resolved:
            self._resolved[name] = self._resolve(name, 0)
        return self._resolved[name]

    def _resolve(self, name: str, depth: int) -> str:
        if not name.startswith(f"{OWN}.") or depth > 20:
            return name
        parts = name.split(".")[1:]
        for end in range(len(parts), -1, -1):
            file = self.files.get(".".join(parts[:end]))
            rest = parts[end:]
            if file is None:
                continue
            if rest and rest[0] in file.imports:
                return self._resolve(".".join([file.imports[rest[0]], *rest[1:]]), depth + 1)
            if (
                rest
                and rest[0] in file.values
                and (value := self.dotted(file.values[rest[0]], file)) is not None
            ):
                return self._resolve(".".join([value, *rest[1:]]), depth + 1)
            return name
        return name

    def dotted(self, node: ast.expr, file: File, local: frozenset[str] = frozenset()) -> str | None:
        """The full name of `torch.nn.functional.relu`, `F.relu`, `helper.f`; None if the base is a value."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local:
            return None
        if node.id in file.imports:
            base = file.imports[node.id]
        elif node.id in file.functions or node.id in file.values or node.id in file.namespaces:
            if parts:
                return None
            base = file.full(node.id)
        else:
            return None
        return self.resolve(".".join([base, *reversed(parts)]))

    def own(self, name: str) -> tuple[File, str] | None:
        """File and top-level name of a full name that begins with `pass_dir.`."""
        module, _, attribute = name.removeprefix(f"{OWN}.").rpartition(".")
        file = self.files.get(module)
        return (file, attribute) if file is not None and name.startswith(f"{OWN}.") else None

    def is_module(self, name: str) -> bool:
        """Whether a full name is that of a file of the candidate's, or of a folder with such."""
        return name in self._modules

    def defines(self, name: str) -> bool:
        """Whether a full name is one that a file of the candidate's gives a meaning to."""
        own = self.own(name)
        if own is None:
            return False
        file, top = own
        return any(top in names for names in (file.functions, file.values, file.namespaces, file.others))

    def is_kernel(self, file: File, node: ast.FunctionDef) -> bool:
        """Decorated with triton.jit."""
        called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        return any(self.dotted(d, file) == "triton.jit" for d in called)

    def kernels_in_blocks(self, file: File) -> list[ast.FunctionDef]:
        """Kernels in an `if` or `try` of the module, where one name may stand for one or another of them."""
        found: list[ast.FunctionDef] = []
        pending: list[ast.AST] = [node for node in file.tree.body if isinstance(node, (ast.If, ast.Try))]
        while pending:
            for part in ast.iter_child_nodes(pending.pop()):
                if isinstance(part, (ast.If, ast.Try, ast.ExceptHandler)):
                    pending.append(part)
                elif isinstance(part, ast.FunctionDef) and self.is_kernel(file, part):
                    found.append(part)
        return found

    def is_for_kernels(self, file: File, node: ast.FunctionDef) -> bool:
        """What a kernel may call: another one, or a constexpr_function, which runs while it is compiled."""
        return self.is_kernel(file, node) or any(
            self.dotted(d, file) == "triton.constexpr_function" for d in node.decorator_list
        )

    def makes_context(self, full: str | None) -> bool:
        """A function of the candidate's under contextlib.contextmanager, and no other decorator."""
        own = self.own(full or "")
        function = own[0].functions.get(own[1]) if own is not None else None
        decorators = [self.dotted(d, own[0]) for d in function.decorator_list] if own and function else []
        return decorators == ["contextlib.contextmanager"]

    def is_constexpr(self, file: File, value: ast.expr) -> bool:
        """`tl.constexpr(...)`."""
        return isinstance(value, ast.Call) and self.dotted(value.func, file) == "triton.language.constexpr"

    def is_named(self, node: ast.Attribute, file: File, local: frozenset[str]) -> bool:
        """`Sizes.BLOCK` of one of the candidate's own classes."""
        own = self.own(self.dotted(node.value, file, local) or "")
        return own is not None and node.attr in own[0].namespaces.get(own[1], ())

    def stands_for(self, file: File, target: ast.Name, value: ast.expr) -> bool:
        """The module-level assignment of `value` is what `target` is known to stand for."""
        known = [file.values.get(target.id), *file.choices.get(target.id, ())]
        return any(value is one for one in known if one is not None)

    def _choose(self, file: File) -> None:
        """Names that `if` or `try` at module level gives one or another function of kernels."""
        found: dict[str, list[ast.expr]] = {}
        for statement in file.tree.body:
            for node in ast.walk(statement) if isinstance(statement, (ast.If, ast.Try)) else ():
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            found.setdefault(target.id, []).append(node.value)
        kernels = set(self.kernels_in_blocks(file))
        for name, values in found.items():
            imported = file.imports.get(name)
            known = file.functions.get(name)
            kernel = known is not None and known in kernels
            other = (known is not None and not kernel) or name in file.namespaces or name in file.values
            if other or (imported is not None and not rules.is_of_kernels(imported)):
                continue
            if all(rules.is_of_kernels(self.dotted(value, file) or "") for value in values):
                file.choices[name] = values
                if imported is None and not kernel:
                    file.values[name] = values[-1]

    def _fill(self, file: File) -> None:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    full, top = self.canonical(alias.name, file), alias.name.split(".")[0]
                    file.imports[alias.asname or top] = full if alias.asname else self.canonical(top, file)
            elif isinstance(node, ast.ImportFrom):
                module = self.canonical(node.module or "", file, node.level)
                for alias in node.names:
                    file.imports[alias.asname or alias.name] = f"{module}.{alias.name}"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                file.others.add(node.id)
        for kernel in self.kernels_in_blocks(file):
            file.functions[kernel.name] = kernel
        for node in file.tree.body:
            if isinstance(node, ast.FunctionDef):
                file.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                file.namespaces[node.name], stored = records.held(node)
                self.classes.add(file.full(node.name))
                self.fields |= stored
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        file.values[target.id] = node.value
                    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        file.values |= _paired(target, node.value)
                self.fields.update(records.named_fields(node.value, lambda name: self.dotted(name, file)))
            elif (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                file.values[node.target.id] = node.value
        self._choose(file)


def module_of(name: str) -> str:
    """The module that a file is, below the candidate's package: empty for the package's own `__init__.py`."""
    folder, _, last = name.removesuffix(".py").rpartition("/")
    return ".".join(part for part in (*folder.split("/"), last if last != "__init__" else "") if part)


def _paired(target: ast.Tuple, value: ast.Tuple) -> dict[str, ast.expr]:
    """`ROWS, COLS = 4, (8, 2)` by name."""
    if len(target.elts) != len(value.elts) or any(
        isinstance(e, ast.Starred) for e in [*target.elts, *value.elts]
    ):
        return {}
    return {t.id: v for t, v in zip(target.elts, value.elts, strict=True) if isinstance(t, ast.Name)}


def targets(comprehension: ast.comprehension) -> set[str]:
    """Names that a comprehension binds."""
    return {node.id for node in ast.walk(comprehension.target) if isinstance(node, ast.Name)}


def bound_names(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Parameters and names assigned in a function: local there, whatever they mean elsewhere."""
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    body = function.body if isinstance(function.body, list) else [function.body]
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.comprehension):  # its names are bound inside of it only
            pending += [node.iter, *node.ifs]
            continue
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        if isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        pending += ast.iter_child_nodes(node)
    return names


def literal_getattr(node: ast.Call) -> ast.Attribute | None:
    """`getattr(x, "name")` and hasattr as the attribute that they are; None for any other call."""
    known = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
    if not known or len(node.args) not in (2, 3) or node.keywords:
        return None
    base, name = node.args[:2]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str) or isinstance(base, ast.Starred):
        return None
    return ast.copy_location(ast.Attribute(base, name.value, ast.Load()), node)


def is_plain_format(node: ast.expr) -> bool:
    """A template that is written out and reads no attribute of what it is given."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    try:
        fields = list(string.Formatter().parse(node.value))
    except ValueError:
        return False
    return all(
        not name or (not {".", "["} & set(name) and "{" not in (spec or "")) for _, name, spec, _ in fields
    )
