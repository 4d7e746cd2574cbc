"""How many input sets a subgraph has, and which is which."""

from __future__ import annotations

SETS = 3
"""Input sets that outputs are compared on: the recorded statistics and own draws."""
BEYOND_SET = 4
"""The set of values beyond what was recorded."""
