"""Server-sent events of a streamed reply, as bytes: whether they are UTF-8 is for the reader to find out.

The SDKs' and httpx2's readers put U+FFFD for what is none, and a damaged reply would pass for a whole one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

_LINE_END = re.compile(rb"\r\n|\n|\r")


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """`(event, data)` of each event of the body; `event` is empty where the server names none.

    Raises what `chunks` raises.
    """
    event, data, rest = "", list[bytes](), b""
    async for chunk in _and_the_end(chunks):
        rest += chunk
        if chunk.endswith(b"\r"):  # the first half of an end of line, maybe
            continue
        *lines, rest = _LINE_END.split(rest)
        for line in lines:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                event = value.decode("utf-8", "replace")
            elif field == b"data":
                data.append(value)
            elif not line and data:
                yield event, b"\n".join(data)
                event, data = "", []


async def _and_the_end(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks and an empty line: servers forget the one after the last event."""
    async for chunk in chunks:
        yield chunk
    yield b"\n\n"
