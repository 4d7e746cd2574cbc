"""Compile C++ kernels, cached by content. Runs on the trusted side: a candidate only asks for it.

What a kernel can do is decided by what the compiler made of it: which files it read (-MD), and the built
object (objects.py): no state, no start-up code, no instruction or call that a kernel has no use for. One rule
is on the text, as the compiler has it after all macros: nothing that an author writes goes to the assembler,
and OpenMP's runtime is called for pragmas only. Neither leaves a trace in an object.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from passagent.kernels import elf, objects, toolchain
from passagent.kernels.source_errors import NO_TORCH, NOT_TORCH, KernelBuildError, KernelRefused, line_of_word
from passagent.kernels.toolchain import LIBRARIES
from passagent.sandbox.limits import MAX_SOURCE
from passagent.sandbox.tools import Access

_LINK = ["-shared", "-s", "-nostartfiles", "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,text"]
_STARTUP = re.compile(r"\.(pre)?init|\.fini|\.ctors|\.dtors|\.tdata|\.tbss")
_TOKEN = re.compile(
    r"""(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?\)(?P=end)"
    |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'
    |^\#[ ]\d+[ ]".*?$|^\#(?P<directive>(?:ident|sccs|pragma[ ]GCC[ ]pch_preprocess)\b)
    |\.?[0-9](?:[eEpP][+-]|'\w|[\w.])*|(?P<word>[^\W\d][\w$]*)|(?P<bracket>[()])""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""Tokens of preprocessed C++, which has no comments, splices or macros any more."""
_ASSEMBLY = re.compile(r"asm|__asm|__asm__")
_NAMING = re.compile(r"(__)?(section|alias|weakref|ifunc|symver)(__)?")
"""Attributes whose string the compiler writes into the assembler's text."""
_RUNTIME = re.compile(r"(__builtin_)?GOMP_\w+")
_NO_ASSEMBLY = "inline assembly; write C++ and intrinsics, and let the compiler choose the instructions"
_CATCHES = re.compile(r"exception handling disabled, use \S+ to enable")
_NO_CATCH = "a kernel catches nothing: what is thrown ends it; check its arguments in Python, before the call"
_OF_STD = re.compile(r"is not a member of .std|has not been declared|incomplete type .std::")
_NO_HEADER = re.compile(r": fatal error: (.+): (?:No such file|Permission denied)")
_PREDEFINED = "stdc-predef.h"
"""GCC reads it before all else."""

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


def build(written: str, name: str, signature: Signature) -> Path:
    """The shared object of kernel `name` for `signature`, built unless it is cached.

    Raises KernelRefused, KernelBuildError (with the compiler's first errors, lines of the source `written`).
    """
    if len(written) > MAX_SOURCE:
        raise KernelRefused(
            "too_large", 1, f"a source of more than {MAX_SOURCE} characters; write a shorter one"
        )
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise KernelBuildError(f"cpp_kernel: {name!r} is not the name of a C++ function")
    source = written.encode("utf-8", "backslashreplace").decode()
    text = program(source, name, signature)
    prelude = toolchain.prelude()
    compile_cpp = functools.partial(_compile, source, text, name, signature, prelude)
    return toolchain.built("cpp", ".so", [text, prelude.name, toolchain.rules()], compile_cpp)


def program(source: str, name: str, signature: Signature) -> str:
    """A source and its entry: from pointers to the arguments to what the kernel returns, or 0."""
    arguments = ", ".join(f"*({ctype}*)given[{i}]" for i, ctype in enumerate(signature.types))
    entry = 'extern "C" __attribute__((visibility("default"))) int passagent_entry(void** given)'
    called = f"return {name}({arguments}), passagent_done();"
    return f'#line 1 "{name}.cpp"\n{source}\n#line 1 "call of {name}"\n{entry} {{ {called} }}\n'


def _compile(source: str, text: str, name: str, signature: Signature, prelude: Path, scratch: Path) -> Path:
    (scratch / "kernel.cpp").write_bytes(text.encode())
    (scratch / "branches.s").write_text(objects.BRANCHES)
    (scratch / "exports").write_text("{ global: passagent_entry; local: *; };\n")
    for header in toolchain.HEADERS | toolchain.NOTHING:  # the prelude has read them
        (scratch / "nothing" / header).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "nothing" / header).touch()
    command = [toolchain.compiler(), *toolchain.CHECKED, "-fmax-errors=3", "-fno-diagnostics-show-caret"]
    command += ["-include", str(prelude), "-Inothing", "-save-temps", "-MD"]
    command += ["-c", "kernel.cpp", "-o", "kernel.o"]
    headers = (*toolchain.header_directories(), prelude.parent)
    access = Access((prelude, Path(f"{prelude}.gch")))
    failed: KernelBuildError | None = None
    try:
        toolchain.run(command, name, scratch, access=access, headers=headers)
    except KernelBuildError as error:
        failed = error
    _check_headers(scratch / "kernel.d", prelude, str(failed or ""), source)
    if (scratch / "kernel.ii").exists():
        _check_text((scratch / "kernel.ii").read_text(errors="replace"), f"{name}.cpp")
    if failed is not None:
        raise KernelBuildError(_explained(str(failed), source, name, signature)) from None
    objects.check_object(scratch / "kernel.o", source, f"{name}.cpp")
    link = [toolchain.compiler(), *_LINK, "-Wl,--version-script=exports", "-fopenmp"]
    link += ["kernel.o", "branches.s", "-o", "kernel.so", *LIBRARIES]
    toolchain.run(link, name, scratch)
    _check_exports(scratch / "kernel.so")
    return scratch / "kernel.so"


def _check_headers(listed: Path, prelude: Path, message: str, source: str) -> None:
    """Raise KernelRefused if the compiler read a file that is not a kernel's, or did not find one."""
    missing = _NO_HEADER.search(message)
    read = listed.read_text(errors="replace") if listed.exists() else ""
    files = read.replace("\\\n", " ").partition(":")[2].split()
    allowed = ("nothing/", "kernel.", str(prelude))
    others = [file for file in files if not file.startswith(allowed) and Path(file).name != _PREDEFINED]
    others = [missing[1]] if missing else others
    if others:
        headers = sorted(toolchain.HEADERS | toolchain.NOTHING)
        reason = f"not among the headers a kernel may include: {', '.join(headers)}"
        line = line_of_word(source, re.escape(others[0].rpartition("/")[2]))
        raise KernelRefused(
            "cpp_include",
            line,
            f"{others[0][:200]}: {NO_TORCH if others[0].startswith(NOT_TORCH) else reason}",
        )


def _check_text(text: str, file: str) -> None:
    """Raise KernelRefused for what would not be seen in the object: the text that goes to the assembler.

    `text` is the preprocessed source, as it is compiled.
    """
    naming, depth, prelude_is_loaded = "", 0, False
    for token in _TOKEN.finditer(text):
        word, bracket, directive = token["word"] or "", token["bracket"], token["directive"]
        if directive == "pragma GCC pch_preprocess" and not prelude_is_loaded:  # the compiler's own
            prelude_is_loaded = True
        elif directive or _ASSEMBLY.fullmatch(word) or _RUNTIME.fullmatch(word):
            raise _refused(text[: token.start()], directive or word, file)
        elif naming and depth and token["string"]:
            raise _refused(text[: token.start()], naming, file)
        elif bracket and naming:
            depth += 1 if bracket == "(" else -1
            naming = naming if depth > 0 else ""
        elif not depth or not naming:
            naming, depth = (word if _NAMING.fullmatch(word) else ""), 0


def _refused(before: str, word: str, file: str) -> KernelRefused:
    """The refusal of `word`, which stands behind the text `before`."""
    marks = list(re.finditer(rf'^# (\d+) "{re.escape(file)}".*$', before, re.MULTILINE))
    line = int(marks[-1][1]) + before.count("\n", marks[-1].end()) - 1 if marks else 1
    if _ASSEMBLY.fullmatch(word):
        return KernelRefused("cpp_asm", line, _NO_ASSEMBLY)
    return KernelRefused("cpp_name", line, f"uses `{word}`, which a kernel has no use for; do without")


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


def _check_exports(path: Path) -> None:
    """The finished file offers its entry and nothing else, and runs nothing when it is loaded."""
    parsed = elf.read(path.read_bytes())
    offered = [s.name for s in parsed.dynamic if s.section != elf.UNDEFINED and s.name != "passagent_entry"]
    startup = [s.name for s in parsed.sections if _STARTUP.match(s.name) or (s.name == ".data" and s.size)]
    if offered or startup:
        message = f"exports, keeps or starts {', '.join(offered + startup)}; define functions only"
        raise KernelRefused("cpp_state", 1, message)
