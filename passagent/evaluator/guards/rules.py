"""What a candidate's code may name: a closed world. What is not listed here is refused.

Lists are literal, so that inspection needs no torch. Messages say what to do instead.
"""

COMPUTING_OPERATOR = (
    "{operator} computes in host code; compute it in a kernel. Host code may allocate (torch.empty_like), "
    "take views (view, permute, slices), call .contiguous() and read shapes"
)

_DTYPES = {
    "bfloat16", "bool", "complex64", "complex128", "complex32", "double", "float", "float16", "float32",
    "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "half", "int", "int8",
    "int16", "int32", "int64", "long", "short", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
_FACTORIES = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "full", "full_like", "ones", "ones_like",
    "tensor", "zeros", "zeros_like",
}  # fmt: skip
_TORCH_VIEWS = {
    "as_strided", "broadcast_to", "chunk", "clone", "flatten", "movedim", "narrow", "permute", "reshape",
    "select", "split", "squeeze", "swapaxes", "t", "transpose", "unbind", "unsqueeze",
}  # fmt: skip
_TORCH_FACTS = {
    "Size", "Tensor", "broadcast_shapes", "can_cast", "channels_last", "channels_last_3d",
    "contiguous_format", "cuda.current_device", "cuda.current_stream", "cuda.device", "cuda.device_count",
    "cuda.get_device_capability", "cuda.get_device_name", "cuda.get_device_properties", "cuda.is_available",
    "device", "dtype", "finfo", "fx.wrap", "get_num_threads", "iinfo", "inference_mode", "is_complex",
    "is_floating_point", "is_tensor", "memory_format", "no_grad", "numel", "preserve_format", "promote_types",
    "result_type", "strided", "version.cuda", "version.hip",
}  # fmt: skip
_TRITON = {
    "Config", "JITFunction", "autotune", "cdiv", "heuristics", "jit", "next_power_of_2",
    "runtime.driver.active.get_active_torch_device", "runtime.driver.active.get_current_device",
    "runtime.driver.active.get_current_target", "runtime.driver.active.utils.get_device_properties",
    "tools.tensor_descriptor.TensorDescriptor",
}  # fmt: skip
_TL_DTYPES = {
    "bfloat16", "float16", "float32", "float64", "float8e4b15", "float8e4b8", "float8e4nv", "float8e5",
    "float8e5b16", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
HOST_NAMES = (
    {f"torch.{name}" for name in _DTYPES | _FACTORIES | _TORCH_VIEWS | _TORCH_FACTS}
    | {f"triton.{name}" for name in _TRITON}
    | {f"triton.language.{name}" for name in _TL_DTYPES | {"constexpr", "dtype"}}
    | {f"functools.{name}" for name in ("cache", "lru_cache", "partial", "reduce")}
    | {f"passagent.kernels.{name}" for name in ("cpp_kernel", "cuda_kernel")}
)
"""Full names that host code may use; `math.` and `typing.` names are allowed whole."""

HOST_PREFIXES = ("math.", "typing.")

IMPORTS = {
    "__future__", "functools", "math", "operator", "passagent.kernels", "torch", "torch.fx", "torch.nn",
    "torch.nn.functional", "triton", "triton.language", "triton.language.extra", "triton.language.extra.cuda",
    "triton.language.extra.hip", "triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice",
    "triton.language.math", "triton.runtime", "triton.runtime.driver", "triton.tools",
    "triton.tools.tensor_descriptor", "typing",
}  # fmt: skip
EXTENSIONS = (
    "ctypes", "cffi", "torch.utils.cpp_extension", "cupy", "numba", "pycuda", "cuda", "subprocess", "Cython",
    "distutils",
)  # fmt: skip
"""Ways to native code of the host."""

BUILTINS = {
    "ArithmeticError", "AssertionError", "AttributeError", "Ellipsis", "Exception", "ImportError",
    "IndexError", "KeyError", "LookupError", "ModuleNotFoundError", "NotImplemented", "NotImplementedError",
    "OverflowError", "RuntimeError", "StopIteration", "TypeError", "ValueError", "ZeroDivisionError", "abs",
    "all", "any", "bin", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "frozenset",
    "hash", "hex", "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "pow", "print",
    "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip", "__name__",
}  # fmt: skip
"""Python's own functions that host code may call."""

HOST_ATTRIBUTES = {
    # facts about a tensor
    "data_ptr", "device", "dim", "dtype", "element_size", "get_device", "is_complex", "is_contiguous",
    "is_cpu", "is_cuda", "is_floating_point", "layout", "nbytes", "ndim", "ndimension", "nelement", "numel",
    "shape", "size", "storage_offset", "stride",
    # allocation and views of a tensor, copies for contiguity, fills
    "as_strided", "broadcast_to", "chunk", "clone", "contiguous", "copy_", "detach", "diagonal", "expand",
    "expand_as", "fill_", "flatten", "mT", "movedim", "moveaxis", "narrow", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_tensor", "new_zeros", "permute", "reshape", "reshape_as", "select", "split",
    "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "T", "tensor_split", "to", "transpose",
    "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "zero_",
    # facts about devices and dtypes
    "L2_cache_size", "bits", "eps", "gcnArchName", "index", "is_signed", "itemsize", "major",
    "max_threads_per_block", "max_threads_per_multi_processor", "minor", "multi_processor_count", "name",
    "regs_per_multiprocessor", "shared_memory_per_block", "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor", "smallest_normal", "tiny", "total_memory", "type", "warp_size",
    "arch", "backend",
    # kernels
    "best_config", "cuda_stream", "function", "kwargs", "metadata", "n_regs", "n_spills", "num_ctas",
    "num_stages", "num_warps", "packed_metadata", "run", "warmup",
    # Python's containers and strings
    "add", "append", "as_integer_ratio", "bit_count", "bit_length", "clear", "copy", "count", "endswith",
    "extend", "get", "insert", "is_integer", "items", "join", "keys", "lower", "lstrip", "pop", "remove",
    "removeprefix", "removesuffix", "replace", "rstrip", "setdefault", "startswith", "strip", "update",
    "upper", "values", "zfill",
}  # fmt: skip
"""Attributes and methods of values in host code. Of these `add` is for sets: see AMBIGUOUS."""

AMBIGUOUS = {"add": 1}
"""Methods of sets that tensors have too: how many arguments they may take, and only as a statement."""

DTYPE_FACTS = {"itemsize", "is_complex", "is_floating_point", "is_signed"}
"""What may follow a full name, as in `torch.float16.itemsize`."""

DECORATORS = {
    "functools.cache", "functools.lru_cache", "torch.fx.wrap", "torch.inference_mode", "torch.no_grad",
    "triton.autotune", "triton.heuristics", "triton.jit",
}  # fmt: skip
CONTEXTS = {"torch.cuda.device", "torch.inference_mode", "torch.no_grad"}
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
} | _TL_DTYPES  # fmt: skip
"""Of triton.language, inside a kernel."""

KERNEL_ATTRIBUTES = {
    "T", "abs", "advance", "argmax", "argmin", "associative_scan", "atomic_add", "atomic_and", "atomic_cas",
    "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "broadcast_to", "cast", "cdiv",
    "ceil", "cos", "cumprod", "cumsum", "dtype", "element_ty", "erf", "exp", "exp2", "expand_dims", "flip",
    "floor", "gather", "histogram", "is_bf16", "is_block", "is_bool", "is_floating", "is_fp16", "is_fp32",
    "is_fp64", "is_fp8", "is_int", "is_int1", "is_int16", "is_int32", "is_int64", "is_int8", "is_int_signed",
    "is_int_unsigned", "is_ptr", "itemsize", "load", "log", "log2", "logical_and", "logical_or", "max", "min",
    "numel", "permute", "primitive_bitwidth", "ravel", "reduce", "reshape", "rsqrt", "scalar", "shape",
    "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "store", "sum", "to", "trans", "type",
    "value", "view", "xor_sum",
}  # fmt: skip
"""Attributes of values inside a kernel."""

KERNEL_BUILTINS = {
    "abs", "bool", "float", "int", "isinstance", "len", "max", "min", "print", "range", "tuple", "slice",
    "zip", "enumerate",
}  # fmt: skip
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
