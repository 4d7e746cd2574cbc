"""What a candidate's code may name: a closed world. What is not listed here is refused.

Lists are literal, so that inspection needs no torch. Messages say what to do instead.
"""

import builtins

from passagent.evaluator.target import CPU, CUDA, Target

COMPUTING_OPERATOR = (
    "{operator} computes in host code; compute it in a kernel. Host code may allocate (torch.empty_like), "
    "take views (view, permute, slices), call .contiguous() and read shapes"
)

_DTYPES = {
    "bfloat16", "bool", "complex64", "complex128", "complex32", "double", "float", "float16", "float32",
    "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "half", "int", "int8",
    "int16", "int32", "int64", "long", "short", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
FACTORIES = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "full", "full_like", "ones", "ones_like",
    "tensor", "zeros", "zeros_like",
}  # fmt: skip
TORCH_VIEWS = {
    "as_strided", "broadcast_tensors", "broadcast_to", "chunk", "clone", "diagonal", "flatten", "moveaxis",
    "movedim", "narrow", "permute", "ravel", "reshape", "select", "split", "squeeze", "swapaxes", "swapdims",
    "t", "tensor_split", "transpose", "unbind", "unflatten", "unsqueeze", "view_as_complex", "view_as_real",
}  # fmt: skip
_TORCH_FACTS = {
    "_assert", "_check", "is_grad_enabled", "Size", "Tensor", "broadcast_shapes", "can_cast",
    "channels_last", "channels_last_3d",
    "contiguous_format", "cuda.current_device", "cuda.current_stream", "cuda.device", "cuda.device_count",
    "cuda.device_of", "cuda.get_device_capability", "cuda.get_device_name", "cuda.get_device_properties",
    "cuda.is_available", "cuda.synchronize", "device", "dtype", "finfo", "fx.wrap", "get_default_dtype",
    "get_num_threads", "iinfo", "inference_mode", "is_complex", "is_floating_point", "is_tensor",
    "memory_format", "no_grad", "numel", "preserve_format", "promote_types", "result_type", "strided",
    "version.cuda", "version.hip",
}  # fmt: skip
_OF_TENSORS = {"contiguous", "detach", "dim", "is_contiguous", "numel", "size", "stride"}
"""Methods that may be named as functions, as in `map(torch.Tensor.contiguous, inputs)`."""
_SETTINGS = {
    "are_deterministic_algorithms_enabled", "backends.cpu.get_cpu_capability",
    "backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32", "cuda.is_bf16_supported",
    "get_float32_matmul_precision",
}  # fmt: skip
"""Of torch, the same in every call."""
_TRITON = {
    "Config", "OutOfResources", "autotune", "cdiv", "heuristics", "jit", "next_power_of_2",
    "runtime.OutOfResources", "runtime.errors.OutOfResources",
    "runtime.driver.active.get_active_torch_device", "runtime.driver.active.get_current_device",
    "runtime.driver.active.get_current_target", "runtime.driver.active.utils.get_device_properties",
    "tools.tensor_descriptor.TensorDescriptor", "tools.tensor_descriptor.TensorDescriptor.from_tensor",
}  # fmt: skip
_ARITHMETIC = {
    "add", "and_", "eq", "floordiv", "ge", "gt", "index", "itemgetter", "le", "lshift", "lt", "mod", "mul",
    "ne", "neg", "or_", "pow", "rshift", "sub", "truediv", "xor",
}  # fmt: skip
"""Of the module operator: what the language's own operators do."""
_ITERATORS = {
    "accumulate", "chain", "chain.from_iterable", "combinations", "compress", "dropwhile", "filterfalse",
    "groupby", "islice", "pairwise", "permutations", "product", "starmap", "takewhile", "zip_longest",
}  # fmt: skip
"""Of itertools: not those without an end, which count."""
_TYPING = {
    "Any", "AnyStr", "Callable", "ClassVar", "Collection", "Concatenate", "DefaultDict", "Dict", "Final",
    "FrozenSet", "Generator", "Hashable", "Iterable", "Iterator", "List", "Literal", "Mapping",
    "MutableMapping", "NamedTuple", "Never", "NoReturn", "Optional", "ParamSpec", "Self", "Sequence",
    "Set", "Sized", "TYPE_CHECKING", "Text", "Tuple", "Type", "TypeAlias", "TypeVar", "Union", "assert_never",
    "cast", "get_args",
}  # fmt: skip
"""Not get_type_hints: it evaluates strings."""
_ABSTRACT = {
    "Callable", "Collection", "Generator", "Hashable", "Iterable", "Iterator", "Mapping", "MutableMapping",
    "Sequence", "Set", "Sized",
}  # fmt: skip
"""Of collections.abc, for annotations."""
_TELLING = {
    "CRITICAL", "DEBUG", "ERROR", "INFO", "Logger", "WARNING", "critical", "debug", "error", "getLogger",
    "info", "warning",
}  # fmt: skip
"""Of logging: what is logged goes to the candidate's own standard error."""
VERSIONS = {"torch.__version__", "triton.__version__"}
"""Strings, though their names look private."""
KERNEL_DTYPES = {
    "bfloat16", "float16", "float32", "float64", "float8e4b15", "float8e4b8", "float8e4nv", "float8e5",
    "float8e5b16", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
HOST_NAMES = (
    {f"torch.{name}" for name in _DTYPES | FACTORIES | TORCH_VIEWS | _TORCH_FACTS | _SETTINGS}
    | {f"torch.Tensor.{name}" for name in _OF_TENSORS}
    | {f"triton.{name}" for name in _TRITON}
    | {f"triton.language.{name}" for name in KERNEL_DTYPES | {"dtype"}}
    | {f"functools.{name}" for name in ("partial", "reduce")}
    | {f"itertools.{name}" for name in _ITERATORS}
    | {f"operator.{name}" for name in _ARITHMETIC}
    | {f"typing.{name}" for name in _TYPING | {"Annotated", "NewType", "TypedDict"}}
    | {f"collections.abc.{name}" for name in _ABSTRACT}
    | {f"logging.{name}" for name in _TELLING}
    | {"packaging.version.Version", "packaging.version.parse"}
    | VERSIONS
    | {"enum.auto", "dataclasses.asdict", "dataclasses.astuple", "dataclasses.replace"}
    | {"collections.OrderedDict", "collections.OrderedDict.fromkeys", "collections.defaultdict"}
    | {"collections.ChainMap", "collections.Counter", "collections.deque"}
    | {"contextlib.nullcontext", "textwrap.dedent"}
    | {"heapq.nlargest", "heapq.nsmallest"}
    | {f"bisect.{name}" for name in ("bisect", "bisect_left", "bisect_right")}
    | {f"passagent.kernels.{name}" for name in ("cpp_kernel", "cuda_kernel")}
)
"""Full names that host code may use; `math.` names are allowed whole."""

SET_ALLOCATOR = "triton.set_allocator"
DECLARING = {SET_ALLOCATOR, "torch.fx.wrap"}
"""What a file may call for its effect when it is imported."""
HOST_PREFIXES = ("math.",)
CONSTANT = "triton.language.constexpr"
"""Computes on whatever meets it: only as `NAME = tl.constexpr(...)` at module level, and in annotations."""
TAKING_CONSTANTS = {"triton.cdiv", "triton.next_power_of_2"}
"""Beside launches, the calls that may be given such a constant."""

IMPORTS = {
    "__future__", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "enum",
    "functools",
    "heapq", "itertools", "math", "operator", "passagent.kernels", "textwrap", "torch", "torch.fx",
    "torch.nn",
    "torch.nn.functional", "torch.testing", "triton", "triton.language", "triton.language.extra",
    "triton.language.extra.cuda", "triton.language.extra.hip", "triton.language.extra.libdevice",
    "triton.language.extra.cuda.libdevice", "triton.language.math", "triton.runtime",
    "triton.runtime.driver", "triton.runtime.errors", "triton.testing", "triton.tools",
    "triton.tools.tensor_descriptor",
    "typing",
}  # fmt: skip
IMPORTS |= {
    "logging", "packaging", "packaging.version", "torch._inductor.runtime",
    "torch._inductor.runtime.triton_helpers", "warnings",
}  # fmt: skip
UNUSED_IMPORTS = {
    "abc", "argparse", "copy", "csv", "datetime", "gc", "importlib", "importlib.metadata", "inspect",
    "io", "json", "numpy", "os", "os.path", "pathlib", "pprint", "random", "re", "statistics", "string",
    "struct", "sys",
    "time", "timeit", "torch.amp", "torch.autograd", "torch.autograd.function", "torch.autograd.profiler",
    "torch.cuda", "torch.cuda.amp", "torch.cuda.nvtx", "torch.library", "torch.profiler", "torch.types",
    "torch.utils.benchmark", "traceback", "types",
    "triton.compiler", "triton.language.core", "triton.runtime.autotuner", "triton.runtime.jit",
    "typing_extensions",
}  # fmt: skip
"""Importing them does nothing: a habit, where their names are used nowhere."""
IMPORT_INSTEAD = {
    "os": "a pass has no environment and no files: write the setting as a constant",
    "numpy": "plan with Python's numbers and math; what is computed on tensors belongs in a kernel",
    "time": "a pass has no clock: the evaluator times it",
    "copy": "write dict(plan) or list(sizes)",
    "random": "what a pass does depends on its arguments only: write the number as a constant",
    "re": "take a text apart with split and partition",
    "threading": "a pass runs in one thread and needs no lock",
    "types": (
        "write a dataclass at the top of the file instead: `@dataclasses.dataclass(frozen=True)`, "
        "`class Config:`, `block: int = 64`; then read `Config().block`"
    ),
    "triton.knobs": (
        "delete this line: a pass has no settings of Triton's; give num_warps and num_stages to the launch "
        "or to triton.Config"
    ),
    "torch.library": "return a plain function that launches the kernel; it needs no registration",
    "torch.autograd": "write the forward as a plain function; no gradient is asked for",
    "importlib": "try the import itself, and `except ImportError`",
}
OF_PYTHON = {
    "collections", "contextlib", "dataclasses", "enum", "functools", "heapq", "itertools", "operator",
    "textwrap", "typing",
}  # fmt: skip
IN_CLASSES = {
    "collections.namedtuple", "dataclasses.dataclass", "dataclasses.field", "enum.Enum", "enum.IntEnum",
    "enum.Flag", "enum.IntFlag", "enum.StrEnum", "functools.total_ordering",
}  # fmt: skip
"""Names that make a class of constants or fields, and mean nothing else (records.py)."""
EXTENSIONS = (
    "ctypes", "cffi", "torch.utils.cpp_extension", "cupy", "numba", "pycuda", "cuda", "subprocess", "Cython",
    "distutils",
)  # fmt: skip
"""Ways to native code of the host."""


def is_extension(name: str) -> bool:
    """A module of EXTENSIONS, or a name in one."""
    return any(name == known or name.startswith(f"{known}.") for known in EXTENSIONS)


_EVERY_BUILTIN = set(dir(builtins))
BUILTINS = {
    "ArithmeticError", "AssertionError", "AttributeError", "Ellipsis", "Exception", "ImportError",
    "IndexError", "KeyError", "LookupError", "ModuleNotFoundError", "NotImplemented", "NotImplementedError",
    "OverflowError", "RuntimeError", "StopIteration", "TypeError", "ValueError", "ZeroDivisionError",
    "DeprecationWarning", "FutureWarning", "RuntimeWarning", "UserWarning", "Warning", "abs",
    "all", "any", "bin", "bool", "callable", "chr", "complex", "dict", "divmod", "enumerate", "filter",
    "float", "format", "frozenset", "hash", "hex", "int", "isinstance", "issubclass", "iter", "len", "list",
    "map", "max", "min", "next", "object", "oct", "ord", "pow", "print", "range", "repr", "reversed", "round",
    "set", "slice", "sorted", "str", "sum", "tuple", "zip", "__name__",
}  # fmt: skip
"""Python's own functions that host code may call."""

HOST_ATTRIBUTES = {
    # facts about a tensor
    "data_ptr", "device", "dim", "dtype", "element_size", "get_device", "is_complex", "is_contiguous",
    "is_cpu", "is_cuda", "is_floating_point", "layout", "nbytes", "ndim", "ndimension", "nelement", "numel",
    "requires_grad", "is_sparse", "is_quantized", "is_meta", "is_mps",
    "is_nested", "is_xpu", "shape", "size", "storage_offset", "stride",
    # allocation and views of a tensor, copies for contiguity, fills
    "as_strided", "broadcast_to", "chunk", "clone", "contiguous", "copy_", "detach", "diagonal", "expand",
    "expand_as", "fill_", "flatten", "mT", "movedim", "moveaxis", "narrow", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_tensor", "new_zeros", "permute", "ravel", "reshape", "reshape_as", "select",
    "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "T", "tensor_split", "to",
    "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "zero_",
    # facts about devices and dtypes
    "L2_cache_size", "bits", "eps", "gcnArchName", "index", "is_signed", "itemsize", "major",
    "max_threads_per_block", "max_threads_per_multi_processor", "minor", "multi_processor_count", "name",
    "regs_per_multiprocessor", "shared_memory_per_block", "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor", "smallest_normal", "resolution", "tiny", "total_memory", "type",
    "warp_size",
    "arch", "backend",
    # of an enumeration's member
    "value",
    # kernels
    "best_config", "constants", "cuda_stream", "function", "kwargs", "metadata", "n_regs", "n_spills",
    "num_ctas", "num_stages", "num_warps", "packed_metadata", "run", "shared", "warmup",
    # loggers and versions
    "critical", "debug", "error", "exception", "getChild", "info", "micro", "release",
    "warning",
    # Python's containers and strings
    "add", "append", "appendleft", "as_integer_ratio", "bit_count", "bit_length", "capitalize", "center",
    "clear", "copy", "count", "difference", "discard", "endswith", "extend", "find", "format", "fromkeys",
    "get", "insert", "intersection",
    "is_integer", "isalnum", "isalpha", "isdigit", "isidentifier", "issubset", "issuperset", "items", "join",
    "keys", "ljust", "lower", "lstrip", "most_common", "move_to_end", "partition", "pop", "popitem",
    "popleft", "remove",
    "removeprefix", "removesuffix", "replace", "reverse", "rfind", "rjust", "rpartition", "rsplit", "rstrip",
    "setdefault", "sort", "splitlines", "startswith", "strip", "title", "union", "update", "upper", "values",
    "zfill",
}  # fmt: skip
"""Attributes and methods of values in host code. Of these some are for containers only: see AMBIGUOUS."""

AMBIGUOUS = {"add": (1,), "sort": (0,)}
"""Methods of containers that tensors have too: how many arguments they may take, and only as a statement."""

TENSOR_FACTS = {
    "contiguous", "data_ptr", "device", "dim", "dtype", "expand", "expand_as", "fill_", "is_contiguous",
    "is_cuda", "ndim", "new_empty", "new_ones", "new_zeros", "permute", "reshape", "shape", "size", "stride",
    "transpose", "unsqueeze", "view", "view_as", "zero_",
}  # fmt: skip
"""What tells a tensor from a number, a shape or a dtype."""
TENSOR_METHODS = {
    "as_strided", "broadcast_to", "chunk", "clone", "contiguous", "copy_", "detach", "diagonal", "expand",
    "expand_as", "fill_", "flatten", "movedim", "moveaxis", "narrow", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_tensor", "new_zeros", "permute", "ravel", "reshape", "reshape_as", "select",
    "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose",
    "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "zero_",
}  # fmt: skip
"""Methods of a tensor that return one."""

DTYPE_FACTS = {"itemsize", "is_complex", "is_floating_point", "is_signed"}
"""What may follow a full name, as in `torch.float16.itemsize`."""

PLANNED = "passagent.kernels.triton_kernel"
DECORATORS = {
    "functools.cache", "functools.lru_cache", PLANNED, "torch.fx.wrap",
    "torch.inference_mode", "torch.no_grad",
    "triton.autotune", "triton.constexpr_function", "triton.heuristics", "triton.jit",
}  # fmt: skip
DECORATE_INSTEAD = {
    "contextlib.contextmanager": "it stands alone, above a function at the top of a file",
    "functools.singledispatch": "tell types apart with isinstance",
}
CONTEXTS = {
    "contextlib.nullcontext", "torch.cuda.device", "torch.cuda.device_of", "torch.inference_mode",
    "torch.no_grad",
}  # fmt: skip
_ENTERED = {"contextlib.ExitStack", "contextlib.contextmanager", "contextlib.suppress"}
"""Where a `with` is, or above a function that is for one."""
LIMITS = {"torch.finfo", "torch.iinfo"}
"""Their `max` and `min` are numbers."""

KERNEL_NAMES = {
    "PropagateNan", "TRITON_MAX_TENSOR_NUMEL", "abs", "add", "advance", "arange", "argmax", "argmin",
    "associative_scan", "assume", "atomic_add", "atomic_and", "atomic_cas", "atomic_load", "atomic_max",
    "atomic_min", "atomic_or", "atomic_store", "atomic_xchg", "atomic_xor", "block_type", "broadcast",
    "broadcast_to", "cast", "cat", "cdiv", "ceil", "clamp", "condition", "const", "constexpr", "cos",
    "cumprod", "cumsum", "debug_barrier", "device_assert", "device_print", "div_rn", "dot", "dot_scaled",
    "dtype", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip", "floor", "fma", "full", "gather",
    "histogram", "interleave", "join", "load", "load_tensor_descriptor", "log", "log2", "make_block_ptr",
    "make_tensor_descriptor", "map_elementwise", "max", "max_constancy", "max_contiguous", "maximum", "min",
    "minimum", "mul", "multiple_of", "num_programs", "permute", "philox", "pi32_t", "pointer_type",
    "program_id", "rand", "rand4x", "randint", "randint4x", "randn", "randn4x", "range", "ravel", "reduce",
    "reduce_or", "reshape", "rsqrt", "sigmoid", "sin", "slice", "softmax", "sort", "split", "sqrt", "sqrt_rn",
    "squeeze", "static_assert", "static_print", "static_range", "store", "store_tensor_descriptor", "sub",
    "sum", "swizzle2d", "tensor", "topk", "trans", "tuple", "umulhi", "unsqueeze", "view", "void", "where",
    "xor_sum", "zeros", "zeros_like",
} | KERNEL_DTYPES  # fmt: skip
"""Of triton.language, inside a kernel."""

KERNEL_ATTRIBUTES = {
    "T", "abs", "advance", "argmax", "argmin", "associative_scan", "atomic_add", "atomic_and", "atomic_cas",
    "atomic_load", "atomic_max", "atomic_min", "atomic_or", "atomic_store", "atomic_xchg", "atomic_xor",
    "broadcast_to", "cast", "cdiv",
    "ceil", "cos", "cumprod", "cumsum", "dtype", "element_ty", "erf", "exp", "exp2", "expand_dims", "flip",
    "floor", "gather", "histogram", "is_bf16", "is_block", "is_bool", "is_floating", "is_fp16", "is_fp32",
    "is_fp64", "is_fp8", "is_int", "is_int1", "is_int16", "is_int32", "is_int64", "is_int8", "is_int_signed",
    "is_int_unsigned", "is_ptr", "itemsize", "load", "log", "log2", "logical_and", "logical_or", "max", "min",
    "numel", "permute", "primitive_bitwidth", "ravel", "reduce", "reshape", "rsqrt", "scalar", "shape",
    "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "store", "sum", "to", "trans", "type",
    "value", "view", "xor_sum", "ALL", "NONE", "item", "reduce_or",
}  # fmt: skip
"""Attributes of values inside a kernel."""

HELPERS = "torch._inductor.runtime.triton_helpers"
"""What the kernels that TorchInductor writes call: device functions of torch's, for kernels only."""
_HELPERS = {
    "any", "div_floor_integer", "is_floating", "max2", "max_with_index", "maximum", "maximum_with_index",
    "min2", "min_with_index", "minimum", "minimum_with_index", "online_softmax_combine",
    "online_softmax_reduce", "prod", "promote_to_tensor", "remainder_integer", "welford", "welford_combine",
    "welford_reduce",
}  # fmt: skip
LIBDEVICE = {
    "triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice",
    "triton.language.extra.hip.libdevice", f"{HELPERS}.libdevice",
}  # fmt: skip
"""One module under several names."""
_ONCE_IN_MATH = {
    "acos", "asin", "atan", "atan2", "cosh", "div_rn", "erf", "exp", "expm1", "fast_dividef", "fast_expf",
    "fast_powf", "fdiv", "isinf", "isnan", "log", "log1p", "pow", "rsqrt", "sinh", "tan", "tanh",
}  # fmt: skip
"""Of libdevice, which older versions of Triton have in triton.language.math."""
KERNEL_OPTIONS = {"_semantic", "extern_libs", "ir_override", "ptx_options"}
"""Of a launch or Config: what would put other code in the kernel's place, or is Triton's own."""

KERNEL_BUILTINS = {
    "abs", "bool", "float", "int", "isinstance", "len", "max", "min", "print", "range", "tuple", "slice",
    "zip", "enumerate",
}  # fmt: skip
KERNEL_HIDDEN = {"getattr", "hasattr", "list"}
"""What Triton knows beside them in a kernel: a local name may not be one of these."""
PATTERN_BUILTINS = {
    "slice", "float", "int", "bool", "complex", "tuple", "list", "range", "min", "max", "abs", "len",
    "Ellipsis",
}  # fmt: skip
PATTERN_MODULES = ("torch.", "operator.", "math.")
ARGUMENT_NAMES = {f"torch.{name}" for name in _DTYPES} | {
    "torch.device",
    "math.inf",
    "math.pi",
    "math.sqrt",
    "math.nan",
}
"""Names that replacement_args may use in a constant."""

COMPUTE = (
    "do the arithmetic in a kernel; host code may allocate (torch.empty_like, torch.zeros), take views "
    "(view, reshape, permute, slices), call .contiguous() and read shapes, strides and dtypes"
)


def shadows(name: str) -> bool:
    """A built-in that a pass may not use: the name may stand for nothing else either."""
    return name in _EVERY_BUILTIN and name not in BUILTINS


def are_alike(one: str, other: str) -> bool:
    """Whether two full names are of the same library, or of its function, which versions have elsewhere."""
    if {one, other} <= LIBDEVICE | {"triton.language.math"}:
        return True
    (place, _, name), (other_place, _, other_name) = one.rpartition("."), other.rpartition(".")
    return name == other_name and {place, other_place} <= LIBDEVICE | {"triton.language.math"}


def is_of_kernels(full: str) -> bool:
    """A function of triton.language, its math or libdevice."""
    module, _, name = full.rpartition(".")
    if module in LIBDEVICE:
        return not name.startswith("_") and name not in ("core", "extern")
    if module == HELPERS:
        return name in _HELPERS
    if module in ("triton.language.math", f"{HELPERS}.math") and name in _ONCE_IN_MATH:
        return True
    known = module in ("triton.language", "triton.language.math", f"{HELPERS}.math")
    return known and name in KERNEL_NAMES


_PRECISION = 'how precise it is (tl.dot(a, b, input_precision="ieee"))'


def pattern_reference(name: str) -> str:
    """Message for a use of pattern or replacement_args."""
    return (
        f"`{name}` only describes the match and is never called; write what the replacement does as a kernel"
    )


def only_entered(name: str) -> str:
    """Message for another use of a function that makes a context."""
    return f"`{name}` makes a context, which lives as long as a `with`; write `with {name}(...):`"


def stored(full: str, target: Target) -> str:
    """Message for a value that is stored into an attribute."""
    if full.startswith(("torch.backends.", "triton.knobs.")):
        return unknown_name(full, target)
    return (
        "stores into an attribute; return values, store into an object of its own in __init__, or under "
        "`if self.plan is None:`, and keep configurations in module-level constants"
    )


def unknown_name(full: str, target: Target) -> str:
    """Message for a full name that is not in the closed world."""
    root = full.split(".", maxsplit=1)[0]
    if root not in target.imports and any(root in one.imports for one in (CPU, CUDA)):
        return f"`{full}` is of no use on the {target.name} target; write kernels in {target.language}"
    if full.startswith("torch.backends.") or full == "torch.set_float32_matmul_precision":
        precisely = _PRECISION if target is CUDA else "how precise it is"
        return f"`{full}` is a flag of the process; delete this line: a kernel says itself {precisely}"
    if full.startswith("triton.knobs"):
        return f"`{full}` is a setting of the process; {IMPORT_INSTEAD['triton.knobs']}"
    if full.startswith(("torch.library.", "torch.ops.")):
        return f"`{full}` asks torch for an operator; {IMPORT_INSTEAD['torch.library']}"
    if root == "torch":
        return f"`{full}` is not among torch's names for host code; {COMPUTE}"
    if root in ("logging", "warnings"):
        return (
            f"`{full}` changes what the process logs; use logging.getLogger(__name__).info and warnings.warn"
        )
    if full in DECORATORS:
        return f"`{full}` is called; write it as a decorator, above the function that it is for"
    if full == CONSTANT:
        return f"`{full}` belongs to constants at module level and to a kernel's parameters; {COMPUTE}"
    if full in IN_CLASSES:
        return f"`{full}` has its place where a class of constants or fields is defined; use it there only"
    module = full.rpartition(".")[0]
    every = HOST_NAMES | DECORATORS | IN_CLASSES | _ENTERED
    known = sorted(name for name in every if name.rpartition(".")[0] == module)
    if known and root in OF_PYTHON:
        known = [name.rpartition(".")[2] for name in known]
        return f"`{full}` is not among the names of host code; of {module} a pass may use {', '.join(known)}"
    if root in IMPORT_INSTEAD:
        return f"`{full}` is not among the names of host code; {IMPORT_INSTEAD[root]}"
    return (
        f"`{full}` is not among the names of host code; use Python's numbers and containers, math, torch's "
        "allocations and views, kernels, and functions of its own"
    )


def instead(name: str) -> str:
    """What to do in place of a built-in."""
    if name in (
        "getattr",
        "setattr",
        "hasattr",
        "delattr",
        "vars",
        "globals",
        "locals",
        "eval",
        "exec",
        "compile",
    ):
        return "name functions and attributes directly, or look them up in a dict of its own"
    if name in ("open", "input"):
        return "a pass has no files: keep tables in the source"
    return "write it with plain functions and numbers"
