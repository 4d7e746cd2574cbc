"""Check what a compiled C++ kernel can do, from its object file, where no spelling of the source hides it.

A kernel's object may hold code and constants, no memory that outlives a call, and nothing that runs when it
is loaded. Its code may call the functions of a list, and its own through pointers (BRANCHES), and may hold no
instruction that reaches the operating system, the clock, other threads' memory or the processor's modes.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from passagent.kernels import elf
from passagent.kernels.source_errors import KernelBuildError, KernelRefused, line_of_word
from passagent.sandbox import tools
from passagent.sandbox.limits import READ
from passagent.sandbox.tools import Access

_CALLBACKS = (
    "GOMP_parallel", "GOMP_parallel_reductions", "GOMP_parallel_sections", "GOMP_parallel_loop_static",
    "GOMP_parallel_loop_dynamic", "GOMP_parallel_loop_guided", "GOMP_parallel_loop_runtime",
    "GOMP_parallel_loop_nonmonotonic_dynamic", "GOMP_parallel_loop_nonmonotonic_guided",
    "GOMP_parallel_loop_nonmonotonic_runtime", "GOMP_parallel_loop_maybe_nonmonotonic_runtime", "GOMP_task",
    "GOMP_taskloop", "GOMP_taskloop_ull",
)  # fmt: skip
"""Functions that call what they are given."""
_KINDS = ("", "ull_")
_SCHEDULES = ("static", "dynamic", "guided", "runtime")
_LOOPS = (
    *(f"{kind}{name}" for kind in ("", "ordered_", "nonmonotonic_") for name in _SCHEDULES),
    "maybe_nonmonotonic_runtime",
)
_DOACROSS = ("start", *(f"{name}_start" for name in _SCHEDULES))
OPENMP = (
    *_CALLBACKS,
    *(f"GOMP_loop_{kind}{name}_start" for kind in _KINDS for name in _LOOPS),
    *(f"GOMP_loop_{kind}{name}_next" for kind in _KINDS for name in _LOOPS),
    *(f"GOMP_loop_{kind}{name}start" for kind in _KINDS for name in ("", "ordered_")),
    *(f"GOMP_loop_{kind}doacross_{name}" for kind in _KINDS for name in _DOACROSS),
    "GOMP_loop_end", "GOMP_loop_end_nowait", "GOMP_sections_start", "GOMP_sections2_start",
    "GOMP_sections_next", "GOMP_sections_end", "GOMP_sections_end_nowait", "GOMP_single_start",
    "GOMP_single_copy_start", "GOMP_single_copy_end", "GOMP_critical_start", "GOMP_critical_end",
    "GOMP_critical_name_start", "GOMP_critical_name_end", "GOMP_atomic_start", "GOMP_atomic_end",
    "GOMP_ordered_start", "GOMP_ordered_end", "GOMP_doacross_post", "GOMP_doacross_wait",
    "GOMP_doacross_ull_post", "GOMP_doacross_ull_wait", "GOMP_barrier", "GOMP_taskwait",
    "GOMP_taskwait_depend", "GOMP_taskyield", "GOMP_taskgroup_start", "GOMP_taskgroup_end",
)  # fmt: skip
"""For `#pragma omp` the compiler may call these, and a source may not: they know how far a loop is."""
_REGISTERS_OF_CALLS = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_THUNK = "__x86_indirect_thunk_"
BRANCHES = (
    """
.macro branch target, scratch
.globl __x86_indirect_thunk_\\target
.hidden __x86_indirect_thunk_\\target
__x86_indirect_thunk_\\target:
  push %\\scratch
  lea __ehdr_start(%rip), %\\scratch
  cmp %\\scratch, %\\target
  jb 1f
  lea etext(%rip), %\\scratch
  cmp %\\scratch, %\\target
  jae 1f
  pop %\\scratch
  cmpl $0xfa1e0ff3, (%\\target)
  jne 1f
  jmp *%\\target
1:
  ud2
.endm
.hidden __ehdr_start, etext
.text
"""
    + "".join(
        f"branch {register}, {'r10' if register == 'r11' else 'r11'}\n" for register in _REGISTERS_OF_CALLS
    )
    + '.section .note.GNU-stack,"",@progbits\n'
)
"""Functions by which a kernel on x86-64 calls and jumps through pointers (GCC's -mindirect-branch).

They go to functions of the kernel's own: within its code, and where the compiler has put the mark of a place
that may be gone to (-fcf-protection). All else ends the process.
"""
if os.uname().machine != "x86_64":
    BRANCHES = ""

_IMPORTS = re.compile(
    "|".join(OPENMP) + rf"|{_THUNK}\w+"
    r"|omp_(get_(thread_num|num_threads|max_threads|num_procs|level|active_level|team_size)|in_parallel)"
    r"|_ZGV\w+|mem(cpy|set|move|cmp|chr)|malloc|calloc|realloc|free|aligned_alloc|posix_memalign"
    r"|_Zn[wa]m(St11align_val_t)?(RKSt9nothrow_t)?|_Zd[la]Pvm?(St11align_val_t)?(RKSt9nothrow_t)?|_ZSt7nothrow"
    r"|_ZSt\d+__throw_\w+|abort|_GLOBAL_OFFSET_TABLE_"
    r"|_ZSt\d+_Rb_tree_(increment|decrement|insert_and_rebalance|rebalance_for_erase)P\w+"  # map, set
    r"|_ZNSt8__detail15_List_node_base\w+|__cxa_pure_virtual|str(len|n?cmp|chr)|[jy][01n]f?"
    r"|_ZSt\d+_Rb_tree_insert_and_rebalanceb\w+|_ZNKSt8__detail20_Prime_rehash_policy\w+"  # unordered ones
    r"|a?(sin|cos|tan)h?f?|atan2f?|exp(m1|2|10)?f?|log(1p|2|10|b)?f?|ilogbf?|powf?|sqrtf?|cbrtf?|erfc?f?"
    r"|[tl]gammaf?|floorf?|ceilf?|truncf?|roundf?|nearbyintf?|l?l?rintf?|l?l?roundf?|fmodf?|remainderf?|fmaf?"
    r"|fm(in|ax)f?|fdimf?|hypotf?|ldexpf?|frexpf?|modff?|copysignf?|nextafterf?|scalbl?nf?|__\w*_finite"
    r"|sincosf?|fabsf?|c(abs|arg|exp|log|pow|sqrt|sin|cos|tan|sinh|cosh|tanh)f?"
    r"|__(mul|div)[sd]c3|__u?(div|mod)ti3|__popcount[sd]i2|__(extend|trunc)[hsdb]f[hsdb]f2"
    r"|__float(un)?[dt]i[hsd]f|__fix(uns)?[hsd]f[dt]i"
)
_BUILT_FOR = "a kernel is compiled for this very processor: ask with #if defined(__AVX2__)"
_INSTEAD = {
    "__cpu_indicator_init": _BUILT_FOR,
    "__cpu_model": _BUILT_FOR,
    "omp_set_num_threads": "write `num_threads(...)` after `#pragma omp parallel`",
    "pthread_mutex_lock": "write `#pragma omp critical`",
    **dict.fromkeys(
        ("fprintf", "fwrite", "printf", "putchar", "puts"), "a kernel prints nothing; do without"
    ),
}
"""Advice in place of a function, where it is not the usual one."""
_NO_STREAM = "a kernel has no streams; std::to_string makes text of a number"
_SECTIONS = re.compile(r"\.(text|rodata|data|bss|tdata|tbss|note)(\..*)?")
_RELOCATED = re.compile(r"\.data\.rel\.ro(\..*)?")  # what the linker makes read-only, and no other name
_INSTRUCTIONS = {
    "x86_64": re.compile(
        r"sys(call|enter|exit|ret)\w*|int[13o]?|iret\w*|in[bwl]?|out[bwl]?|(ins|outs)[bwldq]|hlt"
        r"|rdtscp?|rdpmc|rdpid|rdpru|rdrand|rdseed|cpuid|xgetbv|xsetbv|x(save|rstor)\w*|f\w+"
        r"|(rd|wr)(fs|gs)base|(rd|wr)pkru|x(begin|end|abort|test)|clflush(opt)?|clwb|clzero|cldemote"
        r"|u?monitorx?|u?mwaitx?|tpause|vm(call|mcall|func|run|load|save|launch|resume|read|write|clear)\w*"
        r"|vmptr\w+|vmxo\w+|encl[suv]|enqcmds?|movdir\w+|senduipi|uiret|stui|clui|testui|ptwrite\w*"
        r"|(rd|inc)ssp\w|wru?ss\w|saveprevssp|rstorssp|setssbsy|clrssbsy|v?(ld|st)mxcsr"
        r"|(push|pop)f[wlqd]?|std|stac|clac"
        r"|(ld|st)tilecfg|tile(load|store|zero|release)\w*|tdp\w+"
        r"|l(call|jmp|ret|ds|es|fs|gs|ss)\w*|retf\w*|[ls]lwpcb|lwp(ins|val)|serialize|x(sus|res)ldtrk|hreset"
        r"|wb(no)?invd|loadiwkey|\(bad\)|\.byte"
    ),
    "aarch64": re.compile(
        r"svc|hvc|smc|brk|hlt|dcps\d|drps|eret\w*|mrs|msr|sysl?|at|dc|ic|tlbi|wf[ei]t?|udf|\.inst|\.word"
        r"|undefined"
    ),
}
_INDIRECT = {
    "x86_64": re.compile(r"(notrack |bnd )*(call|jmp)[qlw]? +\*"),
    "aarch64": re.compile(r"(br|blr|braa\w*|brab\w*|blraa\w*|blrab\w*)\b|ret +x(?!30)"),
}
_RETURN_ADDRESS = re.compile(r"push\w* .*|\w+ +.*,(0x0)?\(%rsp\)")
"""Instructions before a return that goes elsewhere."""
_STACK = {
    "x86_64": re.compile(
        r"(mov|xchg|cmov\w+)[qlw]? +(?!%rbp,).*,%[er]?sp|pop[qw]? +%[er]?sp"
        r"|lea[qlw]? +.*\(.*,.*\),%[er]?sp"
    ),
    "aarch64": re.compile(r"mov\s+sp, x(?!29)\d+"),
}
"""Instructions that set the stack's pointer to other than the frame's: a return then goes anywhere."""
_REGISTERS = re.compile(r"%([fg]s|mm\d)\b")
"""Segments, and the x87's registers, which nobody clears between calls."""
_PREFIXES = {
    "lock", "rep", "repz", "repnz", "repe", "repne", "data16", "cs", "bnd", "notrack", "xacquire",
    "xrelease",
}  # fmt: skip
LONGEST_NAME, REFERENCES = 1000, 12
"""Characters of a symbol's name that is written out as C++, and references to parts of it in it."""
_CUT = 200
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_MACHINE = os.uname().machine


def check_object(path: Path, source: str, file: str) -> None:
    """Raise KernelRefused if the relocatable object at `path`, built of `source`, may not run.

    Its line is found by the object's debug lines for `file`, or by a name in `source`; else it is 1.
    """
    parsed = elf.read(path.read_bytes())
    try:
        _check_state(parsed)
        _check_calls(parsed)
        _check_instructions(path)
    except KernelRefused as refused:
        if refused.rule == "cpp_state":
            name = re.search(r"`(?:[^`]*?\W)?(\w+)`", str(refused))
            line = line_of_word(source, name.group(1)) if name else 1
        else:
            line = _line_of(path, parsed, refused, file)
        raise KernelRefused(refused.rule, line, str(refused)) from None


def _check_state(parsed: elf.Elf) -> None:
    """No writable memory, and nothing to run at load or unload."""
    named: dict[int, list[elf.Symbol]] = {}
    for symbol in parsed.symbols:
        if symbol.kind != elf.SECTION_SYMBOL:
            named.setdefault(symbol.section, []).append(symbol)
    for number, section in enumerate(parsed.sections):
        if not section.flags & elf.ALLOC:
            continue
        names = [s.name for s in named.get(number, [])]
        if not _SECTIONS.fullmatch(section.name):
            what = f"{_shown(names)} a section of its own ({section.name[:60]!r})"
            raise KernelRefused("cpp_state", 1, f"{what}; define functions, locals and constexpr tables only")
        constant = _RELOCATED.fullmatch(section.name)  # holds addresses: read-only once they are filled in
        if section.flags & (elf.WRITE | elf.TLS) and section.size and not constant:
            message = f"{_shown(names)} memory that outlives a call; keep everything in locals or constexpr"
            raise KernelRefused("cpp_state", 1, message)
        is_code = bool(section.flags & elf.EXEC)
        held = [s.name for s in named.get(number, []) if s.kind == elf.OBJECT]
        if is_code != section.name.startswith(".text") or (is_code and held):  # data is not disassembled
            what = f"{_shown(held)} a place among code" if held else f"code in {section.name[:60]!r}"
            raise KernelRefused("cpp_state", 1, f"{what}; leave sections to the compiler")
    for symbol in parsed.symbols:
        if symbol.section == elf.COMMON and not symbol.name.startswith(".gomp_critical_user_"):
            message = f"{_shown([symbol.name])} memory that outlives a call; keep everything in locals"
            raise KernelRefused("cpp_state", 1, message)
        if symbol.section != elf.UNDEFINED and symbol.name.startswith(_THUNK):
            raise KernelRefused("cpp_name", 1, f"defines `{symbol.name}`; leave calls to the compiler")
        if symbol.kind in (elf.IFUNC, elf.TLS_SYMBOL) or symbol.name in ("_init", "_fini"):
            message = (
                f"`{symbol.name}` runs or is made when the kernel is loaded; define functions and locals only"
            )
            raise KernelRefused("cpp_state", 1, message)


def _check_calls(parsed: elf.Elf) -> None:
    for symbol in parsed.symbols:
        if symbol.section != elf.UNDEFINED or not symbol.name:
            continue
        if not _IMPORTS.fullmatch(symbol.name) or symbol.binding == elf.WEAK:
            function = demangled([symbol.name])[0]
            instead = _INSTEAD.get(symbol.name, "a kernel may call math, memory and OpenMP functions only")
            instead = _NO_STREAM if "stream<" in function else instead
            message = f"calls {function}; {instead}"
            raise KernelRefused("cpp_import", 1, message)


def _check_instructions(path: Path) -> None:
    if _MACHINE not in _INSTRUCTIONS:
        raise KernelRefused("cpp_instruction", 1, f"kernels for {_MACHINE} cannot be checked yet")
    last = ""
    for line in _run("objdump", "-d", "--no-show-raw-insn", file=path).splitlines():
        instruction = _instruction(line)
        problem = _problem(instruction)
        if problem is not None:
            raise KernelRefused(problem[0], 1, problem[1])
        if instruction.endswith("ret") and _RETURN_ADDRESS.fullmatch(last):
            raise KernelRefused(
                "cpp_pointer_call", 1, "returns to another place than its caller; call by name"
            )
        last = instruction


def _instruction(line: str) -> str:
    """The instruction of a line of disassembly (`  4f:\tadd    $0x1,%rax`), empty for another line."""
    return line.partition(":\t")[2].partition("#")[0].strip()


def _problem(instruction: str) -> tuple[str, str] | None:
    """The rule that an instruction breaks and a message, or None."""
    if _INDIRECT[_MACHINE].match(instruction):
        message = (
            "calls or jumps through a pointer that nothing looks at; call functions by name in a `switch`, "
            "or take them by `template <class F> void each(..., F f)`"
        )
        return "cpp_pointer_call", message
    if _STACK[_MACHINE].fullmatch(instruction):
        message = "moves the stack by a jump or an array of variable length; return, and give arrays a size"
        return "cpp_pointer_call", message
    words = instruction.split()
    while words and words[0] in _PREFIXES:
        words.pop(0)
    if words and (_INSTRUCTIONS[_MACHINE].fullmatch(words[0]) or _REGISTERS.search(instruction)):
        message = f"holds the instruction `{' '.join(words)[:60]}`; a kernel computes, it has no use for it"
        return "cpp_instruction", message
    return None


def _line_of(path: Path, parsed: elf.Elf, refused: KernelRefused, file: str) -> int:
    """The line of `file` where an object's code does what it is refused for; 1 if it does not tell."""
    called = re.match(r"calls (\w+)", str(refused))
    place = re.compile(rf"(?:inlined by )?(?:.*/)?{re.escape(file)}:(\d+)(?: \(.*\))?")
    last, is_placed = 1, False
    written = ["-C"] if all(_is_short(symbol.name) for symbol in parsed.symbols) else []
    command = ("objdump", "-dlr", *written, "--inlines", "--no-show-raw-insn")
    for text in _run(*command, file=path).splitlines():
        match = place.fullmatch(text)
        if match:
            last, is_placed = last if is_placed else int(match.group(1)), True  # the innermost comes first
        elif refused.rule == "cpp_import":
            if called and re.search(rf"R_\w+\s+{called.group(1)}\b", text):
                return last
        elif (_problem(_instruction(text)) or ("",))[0] == refused.rule:
            return last
        is_placed = is_placed and (match is not None or not _instruction(text))
    return 1


def demangled(names: list[str]) -> list[str]:
    """C++ names as an author wrote them; of those that would be too long the beginning, as it is."""
    short = [name if _is_short(name) else f"{name[:_CUT]}..." for name in names]
    lines = _run("c++filt", text="".join(f"{name}\n" for name in short)).split("\n")[:-1] if names else []
    return [line[:LONGEST_NAME] for line in lines]


def _is_short(name: str) -> bool:
    """Each reference to a part of the name before it may double what is written out."""
    return len(name) <= LONGEST_NAME and len(_REFERENCE.findall(name)) <= REFERENCES


def _shown(names: list[str]) -> str:
    functions = demangled([name for name in names if name][:3])
    return f"{', '.join(f'`{name}`' for name in functions)} needs" if functions else "the kernel needs"


def _run(*command: str, file: Path | None = None, text: str = "") -> str:
    """Run a tool on a file or on `text`, and return what it prints. Raises KernelBuildError."""
    files = [] if file is None else [file]
    with tempfile.TemporaryDirectory() as scratch:
        done = tools.run([*command, *map(str, files)], Path(scratch), READ, Access(files), text)
    if done.code != 0:
        raise KernelBuildError(f"the kernel's object cannot be read: {command[0]} {done.why}")
    return done.output
