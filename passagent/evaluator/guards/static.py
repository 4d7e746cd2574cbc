"""Static inspection: every module of a candidate, by its syntax tree, before anything of it runs.

A closed world (INTEGRITY L0): what code may name is listed in rules.py, and what is not listed is refused, so
that there is no way to reach a computing operator, a file or the interpreter's insides, by whatever detour.
What can only be told at run time (the arithmetic of `a + b`) is left to the gate.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter

from passagent.evaluator.candidate import Candidate
from passagent.evaluator.guards import bodies, classes, intake, rules, state
from passagent.evaluator.guards.host import Host
from passagent.evaluator.guards.intake import TOO_LARGE, Finding
from passagent.evaluator.guards.names import HIDDEN
from passagent.evaluator.guards.scope import OWN, File, World
from passagent.evaluator.guards.sources import Texts, TooLong
from passagent.evaluator.guards.trees import stored_names
from passagent.evaluator.limits import INSPECTION
from passagent.evaluator.target import CUDA, Target
from passagent.evaluator.text import shortened
from passagent.kernels.errors import KernelRefused
from passagent.kernels.lexer import MAX_SOURCE

_KERNELS = ("passagent.kernels.cpp_kernel", "passagent.kernels.cuda_kernel")
_FILLING = {"add", "append", "extend", "insert", "setdefault", "sort", "update"}
_TOO_DEEP = (
    "nested more than {levels of nesting} levels deep, or an integer of more than "
    "{digits of an integer} digits; split it"
).format_map(INSPECTION.sizes)
_RESERVED = {"torch", "triton", "numpy", "passagent", OWN} | set(sys.stdlib_module_names)
_ROLES = {
    "pattern": bodies.check_pattern,
    "replacement_args": bodies.check_replacement_args,
    "replacement_func": bodies.check_replacement_func,
}


def inspect(candidate: Candidate, host_extensions: bool = False, target: Target = CUDA) -> list[Finding]:
    """Broken rules in every .py file, manifest or not, by file and line; [] for an honest candidate.

    No more of them than limits.py says. `host_extensions` permits ways to native host code (load_inline,
    ctypes, ...), for a trusted author; what such modules offer is then beyond inspection. Messages name what
    works on `target`. A file that is no Python is not a violation: it does not load, and the loader says why.
    """
    found = intake.check_files(candidate.files)
    if found:
        return found
    world = World(candidate.files, host_extensions, target)
    for file in world.files.values():
        try:
            found += _Inspection(world, file, candidate.files[file.name]).run()
        except RecursionError:
            world.too_large[file.name] = 1
    if not found:
        _compile(world)
    found += [Finding(TOO_LARGE, name, line, _TOO_DEEP) for name, line in world.too_large.items()]
    found.sort(key=lambda finding: (finding.file, finding.line, finding.rule))
    return found[: INSPECTION.sizes["violations"]]


def _compile(world: World) -> None:
    """Compile as the loader will, so that what the compiler blows up does so here."""
    for file in world.files.values():
        try:
            compile(file.tree, file.name, "exec")
        except RecursionError:
            world.too_large[file.name] = 1
        except (SyntaxError, ValueError):
            continue  # the loader says why


class _Inspection:
    """One file."""

    def __init__(self, world: World, file: File, text: str) -> None:
        self.world, self.file, self.text = world, file, text
        self.lines = intake.lines_of(text)
        self.found: dict[Finding, None] = {}
        self.named = world.mentioned()
        self.blocks = dict.fromkeys(world.kernels_in_blocks(file))

    def run(self) -> list[Finding]:
        top = self.file.module.split(".")[0]
        if top in _RESERVED:
            self.report(
                "module_name", self.file.tree, f"a file named {top} hides a library's module; rename it"
            )
        intake.check_encoding(self.text, self.report)
        self.imports()
        self.submodules()
        host = Host(self.world, self.file, self.report)
        for statement in self.file.tree.body:
            if isinstance(statement, ast.FunctionDef):
                self.function(statement, host)
            else:
                self.statement(statement, host)
        self.kernel_options()
        self.kernel_sources()
        return list(self.found)

    def report(self, rule: str, node: ast.AST, message: str) -> None:
        line = getattr(node, "lineno", 1)
        if len(self.found) < INSPECTION.sizes["violations"]:
            message = shortened(message, INSPECTION.sizes["characters of a message"])
            self.found[Finding(rule, self.file.name, line, message)] = None

    def report_foreign(self, rule: str, node: ast.AST, message: str) -> None:
        """Of a kernel that is not compiled on the target: what to write is another one."""
        target = self.world.target
        instead = f"Triton is of no use on the {target.name} target, write kernels in {target.language}"
        self.report(rule, node, f"{message.partition(';')[0]}; {instead}")

    def imports(self) -> None:
        meanings: dict[str, str] = {}
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    self.module(alias.name, node, [bound])
                    self.meaning(meanings, bound, alias.name if alias.asname else bound, node)
            elif isinstance(node, ast.ImportFrom):
                self.from_import(node, meanings)
        definitions = [n for n in self.file.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        times = Counter(node.name for node in definitions)
        for node in definitions:
            if node.name in meanings:
                self.report("rebound_import", node, f"`{node.name}` is imported too; use another name")
            elif times[node.name] > 1:
                self.report("defined_twice", node, f"`{node.name}` is defined twice; use another name")
        for kernel in self.blocks:
            if kernel.name in meanings and not rules.is_of_kernels(self.file.imports.get(kernel.name, "")):
                self.report("rebound_import", kernel, f"`{kernel.name}` is imported too; use another name")
            elif times[kernel.name]:
                self.report("defined_twice", kernel, f"`{kernel.name}` is defined twice; use another name")

    def submodules(self) -> None:
        """Names of a package, also imported ones, that a file in it takes when that is imported."""
        imported = {name: full for name, full in self.file.imports.items() if self.is_beside(name)}
        given = {*self.file.functions, *self.file.namespaces, *stored_names(self.file.tree)}
        for name in sorted(filter(self.is_beside, given | set(imported))):
            beside = self.file.full(name)
            if name in given or f"{imported[name]}.".removeprefix(f"{beside}.") == f"{imported[name]}.":
                message = f"`{name}` is a file of this package too; use another name"
                self.report("module_name", self.file.tree, message)

    def is_beside(self, name: str) -> bool:
        package = self.file.name.rpartition("/")[2] == "__init__.py"
        return package and self.world.is_module(self.file.full(name))

    def from_import(self, node: ast.ImportFrom, meanings: dict[str, str]) -> None:
        module = node.module or ""
        own = self.world.canonical(module, self.file, node.level).split(".")[0] == OWN
        if not own:
            self.module(module, node, [alias.asname or alias.name for alias in node.names])
        for alias in node.names:
            self.meaning(meanings, alias.asname or alias.name, f"{node.level}:{module}.{alias.name}", node)
            if alias.name == "*":
                self.report("star_import", node, "imports *; name what is imported")
            elif own and alias.name in HIDDEN:
                message = f"`{alias.name}` of another file is imported; each pass file defines its own"
                self.report("pattern_reference", node, message)
            elif alias.name.startswith("_") and not own:
                self.report(
                    "private_attribute", node, f"`{module}.{alias.name}` is private; use public names"
                )
            elif (
                module == "passagent.kernels"
                and f"{module}.{alias.name}" not in rules.HOST_NAMES | rules.DECORATORS
            ):
                self.report(
                    "import",
                    node,
                    f"passagent.kernels offers {' and '.join(self.world.target.kernels)}, not {alias.name}",
                )

    def meaning(self, meanings: dict[str, str], name: str, full: str, node: ast.AST) -> None:
        if name.startswith("__"):
            self.report("private_attribute", node, f"`{name}` is private to Python; use another name")
        elif rules.shadows(name) or (name in rules.BUILTINS and name != full.rpartition(".")[2]):
            self.report("builtin", node, f"`{name}` is a built-in of Python; use another name")
        same = rules.are_alike(full.removeprefix("0:"), meanings.get(name, "").removeprefix("0:"))
        if meanings.setdefault(name, full) != full and not same:
            self.report("rebound_import", node, f"`{name}` is imported from two places; use two names")

    def module(self, name: str, node: ast.AST, bound: list[str]) -> None:
        full = self.world.canonical(name, self.file)
        if full.split(".")[0] == OWN or name in rules.IMPORTS:
            return
        if name in rules.UNUSED_IMPORTS and not self.named.intersection(bound):
            return
        if rules.is_extension(name):
            if self.world.host_extensions:
                return
            message = f"{name} builds or calls native host code; write {self.world.target.language}"
            self.report("host_extension", node, message)
        else:
            python = ", ".join(sorted(rules.OF_PYTHON))
            known = f"{', '.join(self.world.target.imports)}, math, {python} and its own files"
            instead = rules.IMPORT_INSTEAD.get(name) or rules.IMPORT_INSTEAD.get(name.partition(".")[0])
            instead = instead or f"a pass may import {known}"
            self.report("import", node, f"`{name}` may not be imported; {instead}")

    def function(self, node: ast.FunctionDef, host: Host) -> None:
        if node.name in _ROLES:
            host.signature(node)
            _ROLES[node.name](self.world, self.file, node, self.report)
        elif self.world.is_kernel(self.file, node):
            host.signature(node)
            works = "triton" in self.world.target.imports
            report = self.report if works else self.report_foreign
            bodies.check_kernel(self.world, self.file, node, report)
            intake.check_kernel_text(self.lines, node, report)
        else:
            if state.is_cached(self.world, self.file, node):
                state.check_cached(self.world, self.file, node, self.report)
            state.check_function(self.world, self.file, node, self.report)
            host.visit(node)

    def statement(self, node: ast.stmt, host: Host) -> None:
        """A module-level statement: constants, kernels and tables, no calls for their effect."""
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if called is not None and not self.declares(called, host):
            message = "a call for its effect when the file is imported; do it in the replacement function"
            self.report("module_call", node, message)
        nothing = {
            target
            for part in ast.walk(node)
            if isinstance(part, ast.Assign)
            for target in part.targets
            if (isinstance(part.value, ast.Constant) and part.value.value is None)
            or any(part.value is one for one in self.file.choices.get(getattr(target, "id", ""), ()))
        }
        pending: list[ast.AST] = [node]
        while pending:
            part = pending.pop()
            if part in self.blocks and isinstance(part, ast.FunctionDef) and part.name not in _ROLES:
                self.function(part, host)
                continue
            if isinstance(node, ast.ClassDef) and (isinstance(part, ast.FunctionDef) or classes.held(part)):
                continue  # a method: what it names is its own
            pending += ast.iter_child_nodes(part)
            if isinstance(part, ast.FunctionDef):
                message = "a function defined in a block; define functions at the top of the file"
                self.report("statement", part, message)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.stored(part, optional=part in nothing)
        state.check_module(self.world, self.file, node, self.report)
        host.visit(node)

    def declares(self, called: ast.expr, host: Host) -> bool:
        """Whether a call may stand by itself: what it calls is inspected, or fills a table."""
        own = self.world.own(host.dotted(called) or "")
        function = own[0].functions.get(own[1]) if own is not None else None
        plain = own is not None and function is not None and not self.world.is_for_kernels(own[0], function)
        method = isinstance(called, ast.Attribute) and host.is_object(called.value)
        return plain or method or host.dotted(called) in rules.DECLARING or self.fills(called)

    def fills(self, called: ast.expr) -> bool:
        """`CONFIGS.append(...)`: more for a container of the module's own."""
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return False
        return called.attr in _FILLING and called.value.id in self.file.values

    def stored(self, name: ast.Name, optional: bool) -> None:
        if name.id in self.file.imports and not optional:
            self.report("rebound_import", name, f"`{name.id}` is imported and assigned; use another name")
        elif name.id in _ROLES:
            self.report("role_assigned", name, f"`{name.id}` must be written as a function, with def")
        elif (name.id in self.file.functions and not optional) or name.id in self.file.namespaces:
            self.report("defined_twice", name, f"`{name.id}` is defined and assigned; use another name")

    def kernel_options(self) -> None:
        """Report what makes a launch take other code, as a keyword or as a key: `**{"ir_override": ...}`."""
        for node in ast.walk(self.file.tree):
            name = node.arg if isinstance(node, ast.keyword) else getattr(node, "value", None)
            if isinstance(node, (ast.keyword, ast.Constant)) and name in rules.KERNEL_OPTIONS:
                message = f"`{name}` puts other code in a kernel's place; write that code in the kernel"
                self.report("kernel_option", node, message)

    def kernel_sources(self) -> None:
        """C++ and CUDA sources that are visible in the text are checked by the compiler's own rules."""
        texts = Texts(self.world, self.file, self.lines)
        for node in ast.walk(self.file.tree):
            called = self.world.dotted(node.func, self.file) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and called in _KERNELS:
                given = node.args[:1] + [k.value for k in node.keywords if k.arg == "source"]
                if given:
                    self.kernel_source(given[0], texts, cuda=called == "passagent.kernels.cuda_kernel")

    def kernel_source(self, given: ast.expr, texts: Texts, cuda: bool) -> None:
        from passagent.kernels import build, build_cuda

        try:
            source = texts.written_out(given)
        except TooLong:
            message = f"a source of more than {MAX_SOURCE} characters; write a shorter one"
            self.report(TOO_LARGE, given, message)
            return
        try:
            if source is not None:
                (build_cuda if cuda else build).check_source(source.text)
        except KernelRefused as error:
            assert source is not None
            self.report(error.rule, ast.Pass(lineno=source.line(error.line)), str(error))
