"""The text rules that C++ and CUDA sources share, on tokens as the compiler sees them.

What a kernel can do is judged on what was built of it (objects.py, ptx.py), where no spelling hides anything.
These rules keep the compiler itself from reading files or taking assembler text, and answer at once, with a
line. A source is first written anew (`read`), without what compilers read differently: comments, line
splices, line ends other than newlines. What is left is both checked and compiled.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from passagent.kernels.source_errors import KernelRefused

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
MAX_SOURCE = 1 << 20
"""Characters of a source, whatever it is joined of."""
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_OPERATORS = {"_Pragma", "__has_include", "__has_include_next", "__has_embed"}
_DIRECTIVES = {
    "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "include",
}  # fmt: skip
_INSTEAD_OF = {
    ("torch/", "ATen/", "c10/", "pybind11/", "Python.h"): (
        "a kernel has no torch; take pointers and sizes (const float* x, int64_t n)"
    ),
    ("cooperative_groups",): "write __syncthreads() and __shfl_xor_sync(0xffffffff, x, k)",
    ("cub/", "thrust/"): "write it with __shared__ and __shfl_xor_sync; warp_sum and warp_max are there",
    ("cuda_pipeline", "cuda/pipeline", "cuda/barrier"): "include cuda_pipeline_primitives.h",
}
"""Advice in place of headers whose names begin like these."""
_WORDS = {
    "asm": "asm", "__asm": "asm", "__asm__": "asm", "thread_local": "state", "__thread": "state",
    "__has_include": "include", "__has_include_next": "include", "__has_embed": "include",
}  # fmt: skip
_COPIES = "; cp.async is __pipeline_memcpy_async of cuda_pipeline_primitives.h"
MESSAGES = {
    "asm": "inline assembly; write C++ and intrinsics, and let the compiler choose the instructions",
    "state": "state that outlives a call; keep everything in locals",
    "include": "asks the compiler which files there are; include a header of the list or do without",
}


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


@dataclass(frozen=True)
class Rules:
    """The rules that differ between the two languages."""

    language: str
    """Prefix of the rules' names: `cpp` or `cuda`."""
    headers: frozenset[str]
    pragmas: re.Pattern[str]
    """Words that may follow `#pragma`, as tokens joined by one space."""


def check(source: Source, rules: Rules) -> None:
    """Raise KernelRefused for all headers, directives, pragmas and words that a kernel has no use for."""
    tokens, refused = source.tokens, list[KernelRefused]()
    pasting = any(token.kind == "paste" for token in tokens)
    at = 0
    while at < len(tokens):
        end = next((i for i in range(at, len(tokens)) if tokens[i].kind == "newline"), len(tokens))
        line = list(tokens[at:end])
        try:
            if line and line[0].kind == "hash":
                line = _check_directive(line[1:], rules)
            _check_line(line, rules, pasting)
        except KernelRefused as error:
            refused.append(error)
        at = end + 1
    if refused:
        first, *others = refused
        more = [f"; line {e.line} too: {re.split(': not among|;', str(e))[0]}" for e in others[:20]]
        raise KernelRefused(first.rule, first.line, "".join([str(first), *more]))


def read(written: str, language: str) -> Source:
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
    for token in _lexed(text, language):
        if token.kind == "newline":
            parts.append("\n" * (token.line - ended))
            ended = token.line
        else:
            blank = token.kind == "space" and token.text.replace("\f", " ").replace("\v", " ")
            parts.append(" " if token.kind == "comment" else blank or token.text)
    text = "".join(parts)
    tokens = [token for token in _lexed(text, language) if token.kind != "space"]
    for token in tokens:
        is_plain = token.text.isprintable() and (token.text.isascii() or token.kind == "word")
        if token.kind != "newline" and not is_plain:
            message = f"{token.text[:20]!a} outside of a comment; write it in ASCII"
            raise KernelRefused(f"{language}_preprocessor", token.line, message)
    trigraph = _TRIGRAPH.search(text)
    if trigraph is not None:
        message = f"the trigraph {trigraph.group()}; write the character that it stands for"
        raise KernelRefused(f"{language}_preprocessor", 1 + text.count("\n", 0, trigraph.start()), message)
    return Source(text, tuple(tokens))


def _lexed(source: str, language: str) -> Iterator[Token]:
    """All tokens; raises KernelRefused for one that has no end, or stands where none can."""
    text, breaks = _spliced(source)
    for match in _TOKEN.finditer(text):
        kind, line = str(match.lastgroup), 1 + bisect_right(breaks, match.start())
        if kind == "raw":
            raise KernelRefused(f"{language}_string", line, "a raw string; write a plain one")
        if kind == "other" and (match.group() in "\"'\\" or ord(match.group()) < 32):
            message = f"{match.group()!r} outside of a literal; write it plainly"
            raise KernelRefused(f"{language}_preprocessor", line, message)
        if kind == "other" and match.group() == "/" and text[match.end() : match.end() + 1] == "*":
            raise KernelRefused(f"{language}_preprocessor", line, "a comment that does not end; close it")
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


def _check_line(line: list[Token], rules: Rules, pasting: bool) -> None:
    for i, token in enumerate(line):
        if token.kind == "hash":
            message = "a macro argument made a string; write the string"
            raise KernelRefused(f"{rules.language}_preprocessor", token.line, message)
        if token.kind == "string" and not _STRING.fullmatch(token.text):
            message = "a string with escapes or such punctuation; write words and brackets, and print nothing"
            raise KernelRefused(f"{rules.language}_string", token.line, message)
        if token.text in _WORDS and token.kind == "word":
            rule = _WORDS[token.text]
            more = _COPIES if (rules.language, rule) == ("cuda", "asm") else ""
            raise KernelRefused(f"{rules.language}_{rule}", token.line, MESSAGES[rule] + more)
        if token.text == "import" and line[i + 1 : i + 2] and line[i + 1].text[0] in '<"':
            raise KernelRefused(f"{rules.language}_include", token.line, "imports a header; write #include")
        if token.text == "_Pragma":
            operands = line[i + 1 : i + 4]
            content = operands[1].text[1:-1] if len(operands) == 3 and operands[1].kind == "string" else ""
            if not content or [operands[0].text, operands[2].text] != ["(", ")"]:
                message = '_Pragma of anything but a string; write _Pragma("...") or #pragma'
                raise KernelRefused(f"{rules.language}_preprocessor", token.line, message)
            _check_pragma(content, token.line, rules)
        if pasting and any(name.startswith(token.text) and name != token.text for name in _OPERATORS):
            message = f"`{token.text}` beside token pasting; use another name"
            raise KernelRefused(f"{rules.language}_preprocessor", token.line, message)


def _check_directive(line: list[Token], rules: Rules) -> list[Token]:
    """Check the tokens after a `#`; returns those that are still to be read as ordinary tokens."""
    if not line:
        return []
    name, rest = line[0].text, line[1:]
    if name in ("include", "import", "include_next", "embed"):
        target = "".join(token.text for token in rest)
        quoted = target[:1] + target[-1:] in ("<>", '""')
        if name != "include" or not quoted or target[1:-1] not in rules.headers:
            reason = f"not among the headers a kernel may include: {', '.join(sorted(rules.headers))}"
            instead = (text for heads, text in _INSTEAD_OF.items() if target[1:-1].startswith(heads))
            message = f"#{name} {target}: {next(instead, reason)}"
            raise KernelRefused(f"{rules.language}_include", line[0].line, message)
        return []
    if name == "pragma":
        _check_pragma(" ".join(token.text for token in rest), line[0].line, rules)
    elif name not in _DIRECTIVES:
        reason = ", ".join(sorted(_DIRECTIVES))
        message = f"#{name} is not among the directives of a kernel: {reason}, pragma"
        raise KernelRefused(f"{rules.language}_preprocessor", line[0].line, message)
    return rest


def _check_pragma(content: str, line: int, rules: Rules) -> None:
    if not rules.pragmas.match(content):
        message = f"#pragma {content[:40]}; use those for OpenMP, unrolling and optimisation"
        raise KernelRefused(f"{rules.language}_preprocessor", line, message)


def line_of_word(source: str, word: str) -> int:
    """The line of `source` where `word` (a regular expression) is first written; 1 if it is not."""
    match = re.search(rf"\b{word}\b", source) if word else None
    return 1 + source.count("\n", 0, match.start()) if match else 1
