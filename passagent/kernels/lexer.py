"""The text rules for CUDA sources, on tokens as the compiler sees them.

What a kernel can do is judged on what was built of it (ptx.py), where no spelling hides anything. These rules
keep NVRTC, which does not list what it reads, from reading files or taking assembler text. A source is first
written anew (`read`), without what compilers read differently: comments, line splices, line ends other than
newlines. What is left is both checked and compiled.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from passagent.kernels.source_errors import NO_TORCH, NOT_TORCH, KernelRefused
from passagent.sandbox.limits import MAX_SOURCE

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>(?:u8|[uUL])?R")
    |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
    |(?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
    |(?P<number>\.?[0-9](?:[eEpP][+-]|'\w|[\w.])*)
    |(?P<word>(?:[^\W\d]|\$)[\w$]*)
    |(?P<newline>\n)|(?P<space>[ \t\f\v]+)
    |(?P<paste>\#\#|%:%:)|(?P<hash>\#|%:)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_STRING = re.compile(r'(?:u8|[uUL])?"(?:[A-Za-z0-9_ .,:=+<>()\[\]{}&|!?\'%-]|(?<!\?)/(?![/*]))*"')
"""Nothing that ends a line of assembler text, a comment or a string, whoever reads it."""
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_OPERATORS = {"_Pragma", "__has_include", "__has_include_next", "__has_embed"}
_DIRECTIVES = {
    "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "include",
}  # fmt: skip
_INSTEAD_OF = {
    NOT_TORCH: NO_TORCH,
    ("cooperative_groups",): "write __syncthreads() and __shfl_xor_sync(0xffffffff, x, k)",
    ("cub/", "thrust/"): "write it with __shared__ and __shfl_xor_sync; warp_sum and warp_max are there",
    ("cuda_pipeline", "cuda/pipeline", "cuda/barrier"): "include cuda_pipeline_primitives.h",
}
"""Advice in place of headers whose names begin like these."""
_WORDS = {
    "asm": "asm", "__asm": "asm", "__asm__": "asm", "thread_local": "state", "__thread": "state",
    "__has_include": "include", "__has_include_next": "include", "__has_embed": "include",
}  # fmt: skip
_MESSAGES = {
    "asm": "inline assembly; write C++ and intrinsics, and let the compiler choose the instructions; "
    "cp.async is __pipeline_memcpy_async of cuda_pipeline_primitives.h",
    "state": "state that outlives a call; keep everything in locals",
    "include": "asks the compiler which files there are; include a header of the list or do without",
}
HEADERS = frozenset({
    "algorithm", "array", "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio",
    "cstdlib", "cstring", "cuda.h", "cuda_bf16.h", "cuda_fp16.h",
    "cuda_pipeline_primitives.h", "cuda_runtime.h", "device_launch_parameters.h", "float.h", "iostream",
    "limits", "limits.h", "math.h", "math_constants.h", "mma.h", "stddef.h", "stdexcept", "stdint.h",
    "stdio.h", "stdlib.h", "string.h", "type_traits", "utility", "vector", "vector_types.h",
})  # fmt: skip
_PRAGMAS = re.compile(r"(unroll|nounroll|once|nv_diag_\w+|diag_\w+)\b")
"""Words that may follow `#pragma`, as tokens joined by one space."""


@dataclass(frozen=True)
class Token:
    """A token of the source: `kind` is a group of _TOKEN, `line` counts from 1."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Source:
    """A source as it is checked and as it is compiled, byte for byte: `text` (in UTF-8) and its tokens."""

    text: str
    tokens: tuple[Token, ...]


def check(source: Source) -> None:
    """Raise KernelRefused for all headers, directives, pragmas and words that a kernel has no use for."""
    tokens, refused = source.tokens, list[KernelRefused]()
    pasting = any(token.kind == "paste" for token in tokens)
    at = 0
    while at < len(tokens):
        end = next((i for i in range(at, len(tokens)) if tokens[i].kind == "newline"), len(tokens))
        line = list(tokens[at:end])
        try:
            if line and line[0].kind == "hash":
                line = _check_directive(line[1:])
            _check_line(line, pasting)
        except KernelRefused as error:
            refused.append(error)
        at = end + 1
    if refused:
        first, *others = refused
        more = [f"; line {e.line} too: {re.split(': not among|;', str(e))[0]}" for e in others[:20]]
        raise KernelRefused(first.rule, first.line, "".join([str(first), *more]))


def read(written: str) -> Source:
    """The source that an author wrote, without comments and line splices, its lines ended by newlines.

    Lines keep their numbers, but for what follows on the last line of a comment or of a splice. Raises
    KernelRefused for what hides tokens from a reader, and for more text than a kernel may have.
    """
    if len(written) > MAX_SOURCE:
        raise KernelRefused(
            "too_large", 1, f"a source of more than {MAX_SOURCE} characters; write a shorter one"
        )
    parts, ended = [], 0
    text = re.sub(r"\r\n?", "\n", written.removeprefix("\ufeff"))
    for token in _lexed(text):
        if token.kind == "newline":
            parts.append("\n" * (token.line - ended))
            ended = token.line
        else:
            blank = token.kind == "space" and token.text.replace("\f", " ").replace("\v", " ")
            parts.append(" " if token.kind == "comment" else blank or token.text)
    text = "".join(parts)
    tokens = [token for token in _lexed(text) if token.kind != "space"]
    for token in tokens:
        is_plain = token.text.isprintable() and (token.text.isascii() or token.kind == "word")
        if token.kind != "newline" and not is_plain:
            message = f"{token.text[:20]!a} outside of a comment; write it in ASCII"
            raise KernelRefused("cuda_preprocessor", token.line, message)
    trigraph = _TRIGRAPH.search(text)
    if trigraph is not None:
        message = f"the trigraph {trigraph.group()}; write the character that it stands for"
        raise KernelRefused("cuda_preprocessor", 1 + text.count("\n", 0, trigraph.start()), message)
    return Source(text, tuple(tokens))


def _lexed(source: str) -> Iterator[Token]:
    """All tokens; raises KernelRefused for one that has no end, or stands where none can."""
    text, breaks = _spliced(source)
    for match in _TOKEN.finditer(text):
        kind, line = str(match.lastgroup), 1 + bisect_right(breaks, match.start())
        if kind == "raw":
            raise KernelRefused("cuda_string", line, "a raw string; write a plain one")
        if kind == "other" and (match.group() in "\"'\\" or ord(match.group()) < 32):
            message = f"{match.group()!r} outside of a literal; write it plainly"
            raise KernelRefused("cuda_preprocessor", line, message)
        if kind == "other" and match.group() == "/" and text[match.end() : match.end() + 1] == "*":
            raise KernelRefused("cuda_preprocessor", line, "a comment that does not end; close it")
        yield Token(kind, match.group(), line)


def _spliced(source: str) -> tuple[str, list[int]]:
    """The source without line splices, and where in it the source's lines end."""
    parts: list[str] = []
    breaks: list[int] = []
    position = 0
    for piece in re.split(r"(\\[ \t\f\v\r]*\n)", source):
        if re.fullmatch(r"\\[ \t\f\v\r]*\n", piece):
            breaks.append(position)
        else:
            breaks += [position + m.start() + 1 for m in re.finditer("\n", piece)]
            parts.append(piece)
            position += len(piece)
    return "".join(parts), breaks


def _check_line(line: list[Token], pasting: bool) -> None:
    for i, token in enumerate(line):
        if token.kind == "hash":
            message = "a macro argument made a string; write the string"
            raise KernelRefused("cuda_preprocessor", token.line, message)
        if token.kind == "string" and not _STRING.fullmatch(token.text):
            message = "a string with escapes or such punctuation; write words and brackets, and print nothing"
            raise KernelRefused("cuda_string", token.line, message)
        if token.text in _WORDS and token.kind == "word":
            rule = _WORDS[token.text]
            raise KernelRefused(f"cuda_{rule}", token.line, _MESSAGES[rule])
        if token.text == "import" and line[i + 1 : i + 2] and line[i + 1].text[0] in '<"':
            raise KernelRefused("cuda_include", token.line, "imports a header; write #include")
        if token.text == "_Pragma":
            operands = line[i + 1 : i + 4]
            content = operands[1].text[1:-1] if len(operands) == 3 and operands[1].kind == "string" else ""
            if not content or [operands[0].text, operands[2].text] != ["(", ")"]:
                message = '_Pragma of anything but a string; write _Pragma("...") or #pragma'
                raise KernelRefused("cuda_preprocessor", token.line, message)
            _check_pragma(content, token.line)
        if pasting and any(name.startswith(token.text) and name != token.text for name in _OPERATORS):
            message = f"`{token.text}` beside token pasting; use another name"
            raise KernelRefused("cuda_preprocessor", token.line, message)


def _check_directive(line: list[Token]) -> list[Token]:
    """Check the tokens after a `#`; returns those that are still to be read as ordinary tokens."""
    if not line:
        return []
    name, rest = line[0].text, line[1:]
    if name in ("include", "import", "include_next", "embed"):
        target = "".join(token.text for token in rest)
        quoted = target[:1] + target[-1:] in ("<>", '""')
        if name != "include" or not quoted or target[1:-1] not in HEADERS:
            reason = f"not among the headers a kernel may include: {', '.join(sorted(HEADERS))}"
            instead = (text for heads, text in _INSTEAD_OF.items() if target[1:-1].startswith(heads))
            message = f"#{name} {target}: {next(instead, reason)}"
            raise KernelRefused("cuda_include", line[0].line, message)
        return []
    if name == "pragma":
        _check_pragma(" ".join(token.text for token in rest), line[0].line)
    elif name not in _DIRECTIVES:
        reason = ", ".join(sorted(_DIRECTIVES))
        message = f"#{name} is not among the directives of a kernel: {reason}, pragma"
        raise KernelRefused("cuda_preprocessor", line[0].line, message)
    return rest


def _check_pragma(content: str, line: int) -> None:
    if not _PRAGMAS.match(content):
        message = f"#pragma {content[:40]}; use those for unrolling"
        raise KernelRefused("cuda_preprocessor", line, message)
