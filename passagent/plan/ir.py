"""Check a Triton kernel's IR (TTIR) and compile it to machine code, in a shut-in process of its own.

    python ir.py KERNEL.ttir REQUEST.json

IR is data: nothing of the author's Python is left in it. What it may hold is a list: operations, attributes
and types that honest kernels use. Everything else is refused, above all what reaches out of a kernel: inline
assembly (clocks come through it), printing, functions from outside, addresses made of numbers.

The text is parsed by MLIR's own parser. What that parser prints again, without places in source files, is
checked and compiled, so that no spelling of the text gets around the check. A text that crashes the parser
ends this process alone. Run as a script, it imports nothing of passagent. It leaves kernel.ptx, kernel.cubin
and kernel.json (see main) in the working directory; what is wrong with the text goes to standard error, exit
code 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPERATIONS = frozenset({
    "builtin.module", "cf.br", "cf.cond_br", "cf.switch", "gpu.barrier", "llvm.intr.assume", "scf.condition",
    "scf.for", "scf.if", "scf.while", "scf.yield", "tt.addptr", "tt.advance", "tt.assert", "tt.atomic_cas",
    "tt.atomic_rmw", "tt.bitcast", "tt.broadcast", "tt.call", "tt.cat", "tt.clampf", "tt.descriptor_gather",
    "tt.descriptor_load", "tt.descriptor_reduce", "tt.descriptor_scatter", "tt.descriptor_store", "tt.dot",
    "tt.dot_scaled", "tt.expand_dims", "tt.extern_elementwise", "tt.fp_to_fp", "tt.func", "tt.gather",
    "tt.get_num_programs", "tt.get_program_id", "tt.histogram", "tt.join", "tt.load", "tt.make_range",
    "tt.make_tensor_descriptor", "tt.make_tensor_ptr", "tt.map_elementwise", "tt.map_elementwise.return",
    "tt.mulhiui", "tt.precise_divf", "tt.precise_sqrt", "tt.reduce", "tt.reduce.return", "tt.reshape",
    "tt.return", "tt.scan", "tt.scan.return", "tt.splat", "tt.split", "tt.store", "tt.trans", "tt.unsplat",
    "ttg.barrier", "ub.poison",
})  # fmt: skip
"""Besides these, all of the dialects `arith` and `math`, which only compute."""
ATTRIBUTES = frozenset({
    "allow_reorder", "axis", "boundaryCheck", "cache", "cachePolicy", "cache_modifier", "efficient_layout",
    "end", "evict", "eviction_policy", "fastMath", "inputPrecision", "isVolatile", "is_volatile", "libname",
    "libpath", "lhs_k_pack", "maxNumImpreciseAcc", "noinline", "operandSegmentSizes", "order", "pack",
    "padding", "pure", "reverse", "rhs_k_pack", "rounding", "start", "symbol", "tt.constancy",
    "tt.contiguity", "tt.disallow_acc_multi_buffer", "tt.divisibility", "tt.flatten", "tt.loop_unroll_factor",
    "tt.max_divisibility", "tt.num_stages", "tt.pointee_type", "tt.warp_specialize",
})  # fmt: skip
"""Names of attributes that are written in braces."""
_WHY = {
    "tt.elementwise_inline_asm": "holds inline assembly; write it in Triton",
    "tt.print": "prints; a kernel only computes",
    "tt.int_to_ptr": "makes an address of a number; pass the tensor",
    "tt.ptr_to_int": "makes a number of an address; compute with offsets",
}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DICTIONARY = re.compile(r"<?\{([^{}]+)\}>?")
_BRACKETS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)")
_FOREIGN = re.compile(r"#(?!tt\.|arith\.)[A-Za-z_][\w.]*|!(?!tt\.(?:ptr|tensordesc)\b)[\w.]+")
_SPACE = re.compile(r"!tt\.ptr<(?:[^<>]|<[^<>]*>)*, *\d+>")
_LIBDEVICE = re.compile(r"__nv_\w+")


def operation_problem(operation: Any, addresses: bool) -> str | None:
    """The fault of an operation of a parsed module, or None. `addresses`: tt.int_to_ptr is allowed."""
    name = operation.get_name()
    if name == "tt.extern_elementwise":
        symbol, path = operation.get_str_attr("symbol") or "", operation.get_str_attr("libpath")
        if path or not _LIBDEVICE.fullmatch(symbol):
            return f"calls {symbol[:80]!r} of a foreign library; use triton.language or its libdevice"
    elif name == "tt.func":
        symbol = operation.get_str_attr("sym_name") or ""
        if operation.get_region(0).empty() or symbol.startswith("llvm."):
            return f"calls the function {symbol[:80]}, which it does not hold"
    elif name == "tt.int_to_ptr" and addresses:
        return None
    elif name not in OPERATIONS and not name.startswith(("arith.", "math.")):
        return _WHY.get(name, f"uses the operation {name[:80]}, which no kernel of a plan may use")
    return None


def text_problems(printed: str) -> Iterator[str]:
    """The faults of a module's attributes and types, by what MLIR prints of it without places."""
    for written in printed.splitlines():
        line = _STRING.sub("", written)
        for foreign in (*_FOREIGN.findall(line), *_SPACE.findall(line)):
            yield f"uses {foreign[:80]}, which no kernel of a plan may use"
        for dictionary in _DICTIONARY.findall(line):
            inner, removed = _BRACKETS.subn("", dictionary)
            while removed:
                inner, removed = _BRACKETS.subn("", inner)
            for item in inner.split(","):
                key = item.partition("=")[0].partition(":")[0].strip()
                if key not in ATTRIBUTES:
                    yield f"has the attribute {key[:80] or '{}'}, which no kernel of a plan may have"
        rest = _DICTIONARY.sub("", line).rstrip()
        if "{" in rest[:-1]:  # a region opens at a line's end
            yield "has an attribute within an attribute, which no kernel of a plan may have"


def parsed(path: str, backend: Any) -> Any:
    """The module in a file, in a context of its own. Raises RuntimeError (MLIR has said why)."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = ir.parse_mlir_module(path, context)
    module.context = context
    return module


def problems(module: Any, entry: str, addresses: bool) -> list[str]:
    """The faults of a parsed module, each once. `entry` must be its only kernel."""
    texts: list[str | None] = []
    module.walk(lambda operation: texts.append(operation_problem(operation, addresses)))
    texts += text_problems(module.str_nodebug())
    if not module.has_function(entry) or module.get_entry_func_name() != entry:
        texts.append(f"is not the kernel {entry}")
    return list(dict.fromkeys(text for text in texts if text is not None))


def types(module: Any, entry: str) -> list[str]:
    """Types of the parameters of a module's kernel, in Triton's words."""
    return list(module.get_function_signature(module.get_function(entry)))


def compiled(module: Any, backend: Any, options: Any, entry: str) -> tuple[str, bytes, dict[str, Any]]:
    """PTX, cubin and Triton's facts about a checked module, which is changed.

    The fact `passed`: the parameters' types after descriptors became pointers, where the GPU has no TMA.
    """
    stages: dict[str, Any] = {}
    metadata = dict(vars(options))
    from triton.backends.compiler import Language

    backend.add_stages(stages, options, Language.TRITON)
    outputs: dict[str, Any] = {}
    for name, stage in stages.items():
        module = outputs[name] = stage(module, metadata)
        if name == "ttir":
            metadata["passed"] = types(module, entry)
    return outputs["ptx"], outputs["cubin"], metadata


def main(file: str, request: str) -> int:
    """Check and compile; exit code 1 if the text may not run or does not compile.

    The request: `entry`, `capability` (90), `options` of Triton, `addresses` (tt.int_to_ptr is allowed).
    kernel.json: `entry` (the symbol), `types` of the parameters as they were checked, `passed` as they are
    compiled, `maps` (what Triton decided about the tensor map of each descriptor), `num_warps`, `num_ctas`,
    `shared` (bytes for a block), `scratch` (bytes of global memory for a block, aligned to 256 at most).
    A file `ready` says that Triton itself was there.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    Path("ready").touch()
    settings = json.loads(Path(request).read_text())
    backend = make_backend(GPUTarget("cuda", settings["capability"], 32))
    options = backend.parse_options(settings["options"])
    Path("printed.ttir").write_text(parsed(file, backend).str_nodebug())
    module = parsed("printed.ttir", backend)
    refusals = problems(module, settings["entry"], settings["addresses"])
    if refusals:
        print("\n".join(f"refused: {text}" for text in refusals), file=sys.stderr)
        return 1
    written = types(module, settings["entry"])
    ptx, cubin, facts = compiled(module, backend, options, settings["entry"])
    Path("kernel.ptx").write_text(ptx)
    Path("kernel.cubin").write_bytes(cubin)
    launch_facts = {name: facts[name] for name in ("passed", "num_warps", "num_ctas", "shared")}
    needs = {"entry": facts["name"], "types": written, "maps": facts.get("tensordesc_meta") or []}
    needs["scratch"] = facts.get("global_scratch_size") or 0
    Path("kernel.json").write_text(json.dumps(launch_facts | needs))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
