"""Compile the kernels of a checked plan, each shut in and cached by its content.

C++ and CUDA C++ compile as for `cpp_kernel` and `cuda_kernel` (passagent.kernels). Of a Triton kernel its IR
is compiled (ir.py), never its Python text.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from passagent.errors import PassagentError
from passagent.kernels import build, build_cuda, toolchain
from passagent.kernels.build import Signature
from passagent.kernels.source_errors import KernelBuildError, KernelRefused, line_of_word
from passagent.plan.arguments import AddressArg, values_of
from passagent.plan.check import PlanError
from passagent.plan.model import Kernel, Launch, Parameter, Plan, TritonKernel, flat
from passagent.plan.values import ConstantValue

_IR = Path(__file__).with_name("ir.py")
_WARP = 32
_CTYPES = {
    "i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "f32": "float",
    "f64": "double", "*": "void*", "!tt.tensordesc<": "CUtensorMap",
}  # fmt: skip
"""Types of parameters in TTIR, of pointers and descriptors the beginnings, as C types."""
_BEGINNING = re.compile(r"(\*|!tt\.tensordesc<).*")
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")
"""A descriptor's type in Triton's signatures.

TTIR has it as `!tt.tensordesc<128x64xf16>`, that of Triton 3.6 as `!tt.tensordesc<tensor<128x64xf16>>`.
"""
_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Types of elements that the driver counts otherwise than TMA's instructions, whose numbers Triton gives."""
_LIKE = {f"u{bits}": f"i{bits}" for bits in (1, 8, 16, 32, 64)}
_LIKE |= {f"fp{bits}": f"f{bits}" for bits in (16, 32, 64)}
_LIKE |= {"fp8e4nv": "f8E4M3FN", "fp8e5": "f8E5M2"}
_TALK = re.compile(
    r'^(?:loc\("[^"]*":\d+:\d+\)|[^\s:]*\.ttir:\d+:\d+): error: (.*)$|^refused: (.*)$', re.MULTILINE
)
_WRITTEN = {
    "holds inline assembly": "(?:inline_asm_elementwise|globaltimer|smid)",
    "prints": "(?:device_)?print",
}
"""Beginnings of refusals, and how what they are about is written in Triton."""


class PlanBuildError(PassagentError):
    """Kernels of a plan do not compile, or ask for more than they may: all of them, a line or more each.

    `failures`: each kernel, and what KernelBuildError or KernelRefused said.
    """

    def __init__(self, failures: list[tuple[Kernel, KernelBuildError | KernelRefused]]) -> None:
        self.failures = failures
        super().__init__("\n".join(told(kernel.entry, error) for kernel, error in failures))


@dataclass(frozen=True)
class Built:
    """A compiled kernel.

    Of C++ `path` is a shared object. Of device code it is a file for `build_cuda.unpack`, and `types` are the
    C types of its parameters. Of Triton's kernels also: `threads` and `shared` (bytes) of a block, `scratch`,
    bytes of global memory that it needs for each program of the grid, `ctas`, the blocks of a program, and
    `maps`: for each parameter of type CUtensorMap the type of its elements and its swizzle, as CUDA's driver
    counts them, then the box.
    """

    path: Path
    types: tuple[str, ...] = ()
    threads: int = 0
    shared: int = 0
    scratch: int = 0
    ctas: int = 1
    maps: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(path: Path, types: Sequence[str], maps: Iterable[Sequence[int]] = (), **numbers: int) -> Built:
        """A kernel by what JSON has of it."""
        return Built(path, tuple(types), maps=tuple(map(tuple, maps)), **numbers)


def compile_plan(plan: Plan, arch: str | None = None) -> dict[str, Built]:
    """The kernels that a plan launches, by their digests. `arch`: of the GPU (sm_90), None without one.

    Raises PlanBuildError for all kernels that do not compile, PlanError for a plan that needs a GPU where
    there is no `arch`, PassagentError where a compiler is not installed.
    """
    built: dict[str, Built] = {}
    failures = []
    for key in dict.fromkeys(step.kernel for step in flat(plan.steps) if isinstance(step, Launch)):
        kernel = plan.kernels[key]
        try:
            built[key] = _built(plan, kernel, arch)
        except (KernelBuildError, KernelRefused) as error:
            failures.append((kernel, error))
    if failures:
        raise PlanBuildError(failures)
    return built


def _built(plan: Plan, kernel: Kernel, arch: str | None) -> Built:
    types = tuple(parameter.type for parameter in kernel.signature)
    if kernel.kind == "cpp":
        return Built(build.build(kernel.text, kernel.entry, Signature(types)))
    if arch is None:
        raise PlanError(f"{kernel.entry} is a kernel for a GPU, and the plan is compiled for none")
    if isinstance(kernel, TritonKernel):
        path = build_triton(kernel, arch, _hands_over_addresses(plan))
    else:
        path = build_cuda.build(kernel.text, kernel.entry, Signature(types), arch)
    facts = json.loads(path.read_bytes().partition(b"\n")[0])
    return Built.of(path, **{name: fact for name, fact in facts.items() if name != "entry"})


def build_triton(kernel: TritonKernel, arch: str, addresses: bool = False) -> Path:
    """The file of a Triton kernel for GPUs of `arch` (for build_cuda.unpack), built unless it is cached.

    `addresses`: it may make pointers of numbers. Raises KernelRefused, KernelBuildError, PassagentError.
    """
    capability = arch.removeprefix("sm_").rstrip("af")
    if kernel.target != f"cuda:{capability}":
        raise KernelBuildError(
            f"{kernel.entry} was recorded for {kernel.target}; record it again for this GPU"
        )
    options = {name: value for name, value in kernel.options.model_dump().items() if value is not None}
    data = {"entry": kernel.entry, "capability": int(capability), "options": options, "addresses": addresses}
    request, types = json.dumps(data), " ".join(_flat(kernel.signature))
    rules = [_IR.read_text(), Path(__file__).read_text(), toolchain.rules()]
    parts = [kernel.ttir, request, types, importlib.metadata.version("triton"), *rules]
    return toolchain.built("triton", ".kernel", parts, functools.partial(_compile, kernel, request))


def _compile(kernel: TritonKernel, request: str, scratch: Path) -> Path:
    (scratch / "kernel.ttir").write_text(kernel.ttir, "utf-8")
    (scratch / "request.json").write_text(request)
    command = [str(_IR), "kernel.ttir", "request.json"]
    try:
        toolchain.run_python(command, kernel.entry, scratch, ["triton"], "Triton does not start")
    except KernelBuildError as error:
        raise _explained(kernel, str(error)) from None
    cubin = (scratch / "kernel.cubin").read_bytes()
    facts = json.loads((scratch / "kernel.json").read_text())
    build_cuda.check_built((scratch / "kernel.ptx").read_text(), cubin, kernel.text)
    types = _types(kernel, facts["types"], facts["passed"])
    maps = [
        [_HOST_TYPES.get(found["elem_type"], found["elem_type"]), found["swizzle"], *found["block_size"]]
        for found in facts["maps"]
    ]
    ctas, scratch_bytes = facts["num_ctas"], facts["scratch"] * facts["num_ctas"]
    sizes = {"threads": _WARP * facts["num_warps"], "shared": facts["shared"], "scratch": scratch_bytes}
    packed = build_cuda.pack(cubin, facts["entry"], types, ctas=ctas, maps=maps, **sizes)
    (scratch / "kernel").write_bytes(packed)
    return scratch / "kernel"


def _explained(kernel: TritonKernel, text: str) -> KernelBuildError | KernelRefused:
    """Explain a failure by the words of MLIR and ir.py, without their dumps."""
    messages = [(error, refused) for error, refused in _TALK.findall(text)]
    refusals = [refused for _, refused in messages if refused]
    if refusals:
        return KernelRefused("triton_ir", _line(kernel, refusals[0]), "; ".join(refusals[:5]))
    errors = [error for error, _ in messages] or [text.strip().splitlines()[-1]]
    return KernelBuildError(f"{kernel.entry} does not compile: {'; '.join(dict.fromkeys(errors))[:600]}")


def _line(kernel: TritonKernel, refusal: str = "") -> int:
    """The line of the kernel's text that a refusal is about: IR has no places. At least the kernel's own."""
    words = [word for begin, word in _WRITTEN.items() if refusal.startswith(begin)]
    lines = (line_of_word(kernel.text, word) for word in (*words, rf"def\s+{kernel.entry}"))
    return next((line for line in lines if line > 1), 1)


def _types(kernel: TritonKernel, types: list[str], passed: list[str]) -> list[str]:
    """C types of what compiled IR is `passed`; its `types` must be those of the plan's signature."""
    expected = [like for kind in _flat(kernel.signature) for like in _like(kind)]
    types = [kind.replace("<tensor<", "<").replace(">>", ">") for kind in types]
    ctypes = [_CTYPES.get(_BEGINNING.sub(r"\1", kind), "") for kind in passed]
    if expected != types or "" in ctypes:
        message = f"takes {', '.join(types)}; its signature says {', '.join(expected)}"
        raise KernelRefused("triton_ir", _line(kernel), message)
    return ctypes


def _flat(parameters: tuple[Parameter, ...]) -> Iterator[str]:
    """Types of the parameters that a compiled kernel has: what is a constant has none."""
    for parameter in parameters:
        if parameter.items:
            yield from _flat(parameter.items)
        elif parameter.type != "constexpr":
            yield parameter.type


def _like(kind: str) -> list[str]:
    """A type of Triton's signatures as TTIR writes it; behind a descriptor are its shape and strides."""
    descriptor = _DESCRIPTOR.fullmatch(kind)
    if descriptor is not None:
        word, block = descriptor[1], re.findall(r"\d+", descriptor[2])
        word = f"{'u' if word[0] == 'u' else 's'}i{word[1:]}" if word[0] in "iu" else _LIKE.get(word, word)
        return [f"!tt.tensordesc<{'x'.join(block)}x{word}>", *["i32"] * len(block), *["i64"] * len(block)]
    pointer = "*" if kind.startswith("*") else ""
    word = kind.removeprefix("*").removeprefix("k") if pointer else kind
    return [pointer + _LIKE.get(word, word)]


def _hands_over_addresses(plan: Plan) -> bool:
    constants = any(isinstance(value, ConstantValue) and value.addresses for value in plan.values)
    given = (argument for step in flat(plan.steps) if isinstance(step, Launch) for argument in step.args)
    return constants or any(True for _ in values_of(*given, kinds=(AddressArg,)))


def told(name: str, error: KernelBuildError | KernelRefused) -> str:
    """The message about a kernel, with its name."""
    if isinstance(error, KernelRefused):
        return f"{name}, line {error.line}: {error}"
    return str(error) if name in str(error) else f"{name}: {error}"
