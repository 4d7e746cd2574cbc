"""Compile C++ kernels, cached by content. Runs on the trusted side: a candidate only asks for it.

Three checks stand between a source and a shared object that a worker loads: the text rules (lexer.py), words
that the compiler itself refuses after its headers are read (no macro hides one, and those of the headers that
make strings and names are gone), and the built object (objects.py): no state, no start-up code, no
instruction or call that a kernel has no use for.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from passagent.kernels import elf, lexer, objects, toolchain
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.kernels.toolchain import FLAGS, LIBRARIES
from passagent.sandbox.tools import Access

__all__ = ["KernelBuildError", "KernelRefused", "Signature", "build", "check_source", "prepare"]

_PRAGMAS = (
    r"(omp|once|unroll|nounroll|ivdep|vector|simd|STDC FP_CONTRACT|clang (loop|fp)"
    r"|GCC (ivdep|unroll|novector|optimize|target|diagnostic|push_options|pop_options))\b"
)
_RULES = lexer.Rules("cpp", toolchain.HEADERS | toolchain.NOTHING, re.compile(_PRAGMAS))
_LINK = ["-shared", "-s", "-nostartfiles", "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,text"]
_STARTUP = re.compile(r"\.(pre)?init|\.fini|\.ctors|\.dtors|\.tdata|\.tbss")
_ASSEMBLY = ("asm", "__asm", "__asm__")
_STACK = (
    "apply", "apply_args", "return", "eh_return", "eh_return_data_regno", "unwind_init", "frame_address",
    "return_address", "extract_return_addr", "frob_return_addr", "dwarf_cfa", "dwarf_sp_column",
    "init_dwarf_reg_size_table", "setjmp", "longjmp", "update_setjmp_buf", "nonlocal_goto", "setjmp_setup",
    "setjmp_receiver", "stack_save", "stack_restore", "init_trampoline", "init_heap_trampoline",
    "adjust_trampoline", "init_descriptor", "adjust_descriptor", "thread_pointer", "set_thread_pointer",
    "call_with_static_chain", "saveregs", "next_arg",
)  # fmt: skip
_CATCHES = re.compile(r"exception handling disabled, use \S+ to enable")
_NO_CATCH = "a kernel catches nothing: what is thrown ends it; check its arguments in Python, before the call"
_OF_STD = re.compile(r"is not a member of .std|has not been declared|incomplete type .std::")
_BRANCHES = ("indirect_branch", "function_return")  # as returns, which are not seen to go through a pointer
_POISONED = (
    *_ASSEMBLY, "weakref", "__weakref__", *_BRANCHES, *(f"__{name}__" for name in _BRANCHES),
    *(f"__builtin_{name}" for name in _STACK),
    *objects.OPENMP, *(f"__builtin_{name}" for name in objects.OPENMP),
)  # fmt: skip


TYPES = frozenset({
    "float*", "double*", "float16*", "bfloat16*", "int64_t*", "int32_t*", "int16_t*", "int8_t*", "uint8_t*",
    "bool*", "int64_t", "double", "bool",
})  # fmt: skip
"""C types of the arguments of a kernel."""


@dataclass(frozen=True)
class Signature:
    """C types of a call's arguments, in order, such as ("float*", "int64_t"). ValueError for others."""

    types: tuple[str, ...]

    def __post_init__(self) -> None:
        if not TYPES.issuperset(self.types):  # they are written into the program, which is not checked again
            raise ValueError(f"no types of a kernel's arguments: {sorted({*self.types} - TYPES)!r:.200}")


def check_source(written: str) -> lexer.Source:
    """The source as it is compiled. Raises KernelRefused for what it may not hold, by its text."""
    source = lexer.read(written, "cpp")
    lexer.check(source, _RULES)
    return source


def prepare() -> Path:
    """The header that every kernel sees first, precompiled (seconds, once for a compiler)."""
    return toolchain.prelude(_POISONED)


def build(written: str, name: str, signature: Signature) -> Path:
    """The shared object of kernel `name` for `signature`, built unless it is cached.

    Raises KernelRefused, KernelBuildError (with the compiler's first errors, lines of the source `written`).
    """
    source = check_source(written).text
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise KernelBuildError(f"cpp_kernel: {name!r} is not the name of a C++ function")
    text = program(source, name, signature)
    prelude = prepare()
    compile_cpp = functools.partial(_compile, source, text, name, signature, prelude)
    return toolchain.built("cpp", ".so", [text, prelude.name, toolchain.rules()], compile_cpp)


def program(source: str, name: str, signature: Signature) -> str:
    """A checked source and its entry: from pointers to the arguments to what the kernel returns, or 0."""
    arguments = ", ".join(f"*({ctype}*)given[{i}]" for i, ctype in enumerate(signature.types))
    entry = 'extern "C" __attribute__((visibility("default"))) int passagent_entry(void** given)'
    called = f"return {name}({arguments}), passagent_done();"
    return f'#line 1 "{name}.cpp"\n{source}\n#line 1 "call of {name}"\n{entry} {{ {called} }}\n'


def _compile(source: str, text: str, name: str, signature: Signature, prelude: Path, scratch: Path) -> Path:
    (scratch / "kernel.cpp").write_bytes(text.encode())
    (scratch / "exports").write_text("{ global: passagent_entry; local: *; };\n")
    for header in _RULES.headers:  # the prelude has read them; read again, they bring their macros back
        (scratch / "nothing" / header).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "nothing" / header).touch()
    command = [toolchain.compiler(), *FLAGS, "-fmax-errors=3", "-fno-diagnostics-show-caret"]
    command += ["-include", str(prelude), "-Inothing", "-c", "kernel.cpp", "-o", "kernel.o"]
    headers = (*toolchain.header_directories(), prelude.parent)
    access = Access((prelude, Path(f"{prelude}.gch")))
    try:
        toolchain.run(command, name, scratch, access=access, headers=headers)
    except KernelBuildError as error:
        _raise_if_poisoned(str(error), name)
        raise KernelBuildError(_explained(str(error), source, name, signature)) from None
    objects.check_object(scratch / "kernel.o", source, f"{name}.cpp")
    link = [toolchain.compiler(), *_LINK, "-Wl,--version-script=exports", "-fopenmp", "kernel.o"]
    toolchain.run([*link, "-o", "kernel.so", *LIBRARIES], name, scratch)
    _check_exports(scratch / "kernel.so")
    return scratch / "kernel.so"


def _explained(message: str, source: str, name: str, signature: Signature) -> str:
    """The compiler's message, and what it cannot know: how the kernel is called, which headers are empty."""
    message = _CATCHES.sub(_NO_CATCH, message)
    first = next((line for line in message.splitlines() if ": error:" in line), "")
    if first.startswith(f"call of {name}:"):
        called = f"{name}({', '.join(signature.types)})"
        advice = "" if "template" in source else "; a template (template <class T>) takes all dtypes"
        message += f"\nit is called as {called}{advice}"
    empty = [f"<{header}>" for header in sorted(toolchain.NOTHING) if f"<{header}>" in source]
    if empty and _OF_STD.search(message):
        message += f"\n{', '.join(empty)}: empty for a kernel, which prints, times and draws nothing"
    return message


def _raise_if_poisoned(message: str, name: str) -> None:
    """A refused word as a refusal; the compiler found it after all macros were expanded."""
    poisoned = re.search(r'attempt to use poisoned "(\w+)"', message)
    if poisoned is None:
        return
    place = re.findall(rf"^{re.escape(name)}\.cpp:(\d+):", message[: poisoned.start()], re.MULTILINE)
    line = int(place[-1]) if place else 1
    if poisoned.group(1) in _ASSEMBLY:
        raise KernelRefused("cpp_asm", line, lexer.MESSAGES["asm"]) from None
    raise KernelRefused(
        "cpp_name", line, f"uses `{poisoned.group(1)}`, which a kernel has no use for; do without"
    ) from None


def _check_exports(path: Path) -> None:
    """The finished file offers its entry and nothing else, and runs nothing when it is loaded."""
    parsed = elf.read(path.read_bytes())
    offered = [s.name for s in parsed.dynamic if s.section != elf.UNDEFINED and s.name != "passagent_entry"]
    startup = [s.name for s in parsed.sections if _STARTUP.match(s.name) or (s.name == ".data" and s.size)]
    if offered or startup:
        message = f"exports, keeps or starts {', '.join(offered + startup)}; define functions only"
        raise KernelRefused("cpp_state", 1, message)
