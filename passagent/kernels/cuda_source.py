"""The parameters of a CUDA kernel: the parameter list of a `__global__` function, as types.

`instantiate` fits a call's arguments to it: which template arguments they mean, and how each one is passed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from passagent.kernels.lexer import Source, Token
from passagent.kernels.source_errors import KernelBuildError

_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__", "std", ":"}
_SHORT = {
    "int": "int32_t", "int32_t": "int32_t", "signed": "int32_t", "unsigned": "uint32_t",
    "uint32_t": "uint32_t", "uint": "uint32_t", "long": "int64_t", "long long": "int64_t",
    "int64_t": "int64_t", "ptrdiff_t": "int64_t", "unsigned long": "uint64_t",
    "unsigned long long": "uint64_t", "uint64_t": "uint64_t", "size_t": "uint64_t", "short": "int16_t",
    "int16_t": "int16_t", "unsigned short": "uint16_t", "uint16_t": "uint16_t", "signed char": "int8_t",
    "int8_t": "int8_t", "char": "int8_t", "unsigned char": "uint8_t", "uint8_t": "uint8_t",
    "bool": "bool", "float": "float", "double": "double", "half": "float16", "__half": "float16",
    "float16": "float16", "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "bfloat16": "bfloat16",
}  # fmt: skip
_WORDS = {word for name in _SHORT for word in name.split()}
_FLOATING = {"float", "double", "float16", "bfloat16"}


@dataclass(frozen=True)
class Parameter:
    """A parameter: its type without qualifiers and pointer, and its text for messages."""

    base: str
    pointer: bool
    text: str


@dataclass(frozen=True)
class Kernel:
    """A `__global__` function: template parameters as (name, is a type, has a default), and parameters."""

    name: str
    template: list[tuple[str, bool, bool]]
    parameters: list[Parameter]


@dataclass(frozen=True)
class Instance:
    """A kernel for one call's types: the C++ expression that names it, and each parameter's C type."""

    expression: str
    types: list[str]


def instantiate(source: Source, name: str, argument_types: tuple[str, ...]) -> Instance:
    """Fit the arguments `given` (`float*`, `int64_t`, `double`, `bool`) to the kernel `name` of `source`.

    `name` may hold leading template arguments, `rows<256>`. Raises KernelBuildError where they do not fit.
    """
    match = re.fullmatch(r"([A-Za-z_]\w*)(?:<([\w ,-]+)>)?", name)
    if match is None:
        raise KernelBuildError(f"cuda_kernel: {name!r} is not the name of a kernel")
    kernel = find(source, match.group(1))
    if len(argument_types) != len(kernel.parameters):
        takes = ", ".join(parameter.text for parameter in kernel.parameters)
        raise KernelBuildError(
            f"{name}: {len(argument_types)} arguments for the {len(kernel.parameters)} parameters ({takes})"
        )
    explicit = [part.strip() for part in match.group(2).split(",")] if match.group(2) else []
    chosen = dict(zip([t[0] for t in kernel.template], explicit, strict=False))
    for number, (parameter, argument) in enumerate(zip(kernel.parameters, argument_types, strict=True)):
        _fit(kernel, number, parameter, argument, chosen)
    arguments = _template_arguments(kernel, chosen)
    numbered = enumerate(zip(kernel.parameters, argument_types, strict=True))
    types = [_launched(kernel, n, parameter, argument, chosen) for n, (parameter, argument) in numbered]
    return Instance(f"{kernel.name}<{', '.join(arguments)}>" if kernel.template else kernel.name, types)


def _fit(kernel: Kernel, number: int, parameter: Parameter, argument: str, chosen: dict[str, str]) -> None:
    """Check one argument against its parameter, and learn a template argument of it."""
    what = f"{kernel.name}: argument {number} is {_said(argument)}, its parameter is `{parameter.text}`"
    if parameter.pointer != argument.endswith("*"):
        raise KernelBuildError(what)
    kinds = {name: is_type for name, is_type, _ in kernel.template}
    if not parameter.pointer:
        return
    dtype = argument.removesuffix("*")
    if kinds.get(parameter.base):
        if chosen.setdefault(parameter.base, dtype) != dtype:
            raise KernelBuildError(f"{what}, and {parameter.base} is {chosen[parameter.base]} already")
    elif _SHORT.get(parameter.base) in _FLOATING - {dtype}:
        raise KernelBuildError(what)


def _template_arguments(kernel: Kernel, chosen: dict[str, str]) -> list[str]:
    arguments = []
    for position, (name, _, default) in enumerate(kernel.template):
        if name in chosen:
            arguments.append(chosen[name])
        elif all(has_default for _, _, has_default in kernel.template[position:]) and default:
            return arguments
        else:
            message = f"{kernel.name}: template parameter {name} does not follow from the tensors given"
            raise KernelBuildError(f'{message}; name it: cuda_kernel(source, "{kernel.name}<...>")')
    return arguments


def _launched(
    kernel: Kernel, number: int, parameter: Parameter, argument: str, chosen: dict[str, str]
) -> str:
    if parameter.pointer:
        return "void*"
    ctype = _SHORT.get(chosen.get(parameter.base, parameter.base))
    if ctype is None or ctype in ("float16", "bfloat16"):
        message = f"{kernel.name}: parameter `{parameter.text}` is neither a pointer nor a number"
        raise KernelBuildError(f"{message}; take int, int64_t, float, double, bool or pointers")
    if argument == "double" and ctype not in ("float", "double"):
        raise KernelBuildError(
            f"{kernel.name}: argument {number} is a float, its parameter is `{parameter.text}`"
        )
    return ctype


def _said(argument: str) -> str:
    names = {"int64_t": "an int", "double": "a float", "bool": "a bool"}
    return f"a {argument.removesuffix('*')} tensor" if argument.endswith("*") else names[argument]


def find(source: Source, name: str) -> Kernel:
    """The `__global__` function `name` of `source`; KernelBuildError if there is none."""
    code = _code(source.tokens)
    start, is_kernel = 0, False
    for position, token in enumerate(code[:-1]):
        if token.text in (";", "{", "}"):
            start, is_kernel = position + 1, False
        is_kernel |= token.text == "__global__"
        if is_kernel and token.text == name and code[position + 1].text == "(":
            end = _closing(code, position + 1)
            template, aliases = _template(code[start:position]), _aliases(code)
            types = {parameter for parameter, _, _ in template}
            parts = (_parameter(part) for part in _split(code[position + 2 : end]))
            parameters = [part if part.base in types else _resolved(part, aliases) for part in parts]
            return Kernel(name, template, parameters)
    raise KernelBuildError(f"{name}: the source has no kernel `__global__ void {name}(...)`")


def _aliases(code: list[Token]) -> dict[str, str]:
    """Names that a source gives to types, `using index_t = int;`; not those that it gives to several."""
    meanings: dict[str, set[str]] = {}
    texts = iter(token.text for token in code)
    for word in texts:
        if word not in ("using", "typedef"):
            continue
        phrase = list(itertools.takewhile(lambda text: text != ";", texts))
        if word == "typedef":
            name, meaning = phrase[-1:], phrase[:-1]
        else:
            name, meaning = phrase[:1], phrase[2:] if phrase[1:2] == ["="] else []
        words = [word for word in meaning if word not in _QUALIFIERS]
        if name and words:
            meanings.setdefault(name[0], set()).add(" ".join(words))
    return {name: alternatives.pop() for name, alternatives in meanings.items() if len(alternatives) == 1}


def _resolved(parameter: Parameter, aliases: dict[str, str]) -> Parameter:
    base, unresolved = parameter.base, set(aliases)
    while base in unresolved:
        unresolved.remove(base)
        base = _number(aliases[base].split())
    return Parameter(base, parameter.pointer, parameter.text)


def _number(words: list[str]) -> str:
    """`long` for `long int`."""
    return " ".join([w for w in words if w != "int"] or words if len(words) > 1 else words)


def _code(tokens: Iterable[Token]) -> list[Token]:
    """Tokens of all lines that are no directives."""
    code: list[Token] = []
    directive, start = False, True
    for token in tokens:
        if token.kind == "newline":
            start, directive = True, False
            continue
        directive = directive or (start and token.kind == "hash")
        start = False
        if not directive:
            code.append(token)
    return code


def _closing(code: list[Token], at: int) -> int:
    depth = 0
    for position in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[position].text, 0)
        if depth == 0:
            return position
    raise KernelBuildError("a parameter list that does not end")


def _split(part: list[Token]) -> list[list[Token]]:
    """Tokens between commas that are in no brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in part:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [p for p in parts if p and [t.text for t in p] != ["void"]]


def _template(head: list[Token]) -> list[tuple[str, bool, bool]]:
    if not head or head[0].text != "template":
        return []
    depth, end = 0, 1
    for end in range(1, len(head)):
        depth += {"<": 1, ">": -1}.get(head[end].text, 0)
        if depth == 0:
            break
    parameters = []
    for part in _split(head[2:end]):
        texts = [token.text for token in part]
        default = "=" in texts
        words = texts[: texts.index("=")] if default else texts
        parameters.append((words[-1], words[0] in ("class", "typename"), default))
    return parameters


def _parameter(part: list[Token]) -> Parameter:
    texts = [token.text for token in part]
    text = " ".join(texts)
    texts = texts[: texts.index("=")] if "=" in texts else texts
    pointer = "*" in texts or "[" in texts
    words = [t for t in texts if t not in _QUALIFIERS]
    end = min((words.index(mark) for mark in ("*", "[") if mark in words), default=len(words))
    words = words[:end]
    if ("*" not in texts and len(words) > 1 and words[-1] not in _WORDS) or "[" in texts:
        words = words[:-1]
    return Parameter(_number(words), pointer, text.replace(" ,", ",").replace(" *", "*"))
