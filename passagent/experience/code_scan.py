"""Search files for a string or an expression: a program of its own, so that an expression cannot hang more.

It imports nothing of passagent's: `python -I -S code_scan.py` takes a JSON object on stdin and prints lines.
"""

import json
import re
import resource
import sys

MAX_HITS = 400
"""Lines that are told."""
MAX_LINE = 200
"""Characters of a line that are told."""


def main() -> None:
    """`{"files": [[name, path], ...], "pattern", "is_regex", "cpu_s"}` to lines `name:line: text`."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (asked["cpu_s"], asked["cpu_s"] + 1))
    pattern = asked["pattern"]
    find = re.compile(pattern if asked["is_regex"] else re.escape(pattern)).search
    hits = 0
    for name, path in asked["files"]:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if find(line.rstrip("\n")) is None:
                    continue
                hits += 1
                if hits > MAX_HITS:
                    print(f"more than {MAX_HITS} lines match; ask for less")
                    return
                print(f"{name}:{number}: {line.strip()[:MAX_LINE]}")


if __name__ == "__main__":
    main()
