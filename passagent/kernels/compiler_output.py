"""Select a compiler's messages for an author: nothing that quotes a file other than the kernel's.

A line that names a place is shown where the place is in the kernel, or in a header that comes with the
compiler. What follows such a line without a place of its own (the line quoted, a mark beneath) is shown for
the kernel only.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from passagent.sandbox.limits import MESSAGE

_PLACE = re.compile(r"(?:In file included from | +from )?(?P<file>[^\s:(][^:(]*)(?:\(\d+\)|:)")
_PROGRAMS = re.compile(r"(?:.*/)?(?:[\w.-]*-)?(?:ld(?:\.\w+)?|as|collect2|cc1(?:plus)?)")


def shown(text: str, headers: Collection[str]) -> str:
    """The lines of `text` that an author may see, cut to MESSAGE characters.

    A place without a directory is in the kernel's files. `headers`: directories with the compiler's headers,
    ending in a slash.
    """
    lines, is_own, is_known = [], True, True
    for line in text.splitlines():
        place = _PLACE.match(line)
        if place is not None:
            file = place["file"]
            is_own = "/" not in file
            is_known = is_own or bool(_PROGRAMS.fullmatch(file)) or file.startswith(tuple(headers))
        if is_known and (is_own or place is not None or not line[:1].isspace()):
            lines.append(line)
    return "\n".join(lines).strip()[:MESSAGE]
