"""Limits of a candidate on the trusted side: sizes and lengths. docs/evaluator.md has all of it."""

from __future__ import annotations

FILES = {"bytes of files and names": 1 << 20, "files": 200}
"""The most that a candidate may have."""
VIOLATIONS = 200
MESSAGE = 2000
"""Characters of a violation's message."""
ERROR = 4000
"""Characters of a worker's error."""
