"""What a model computes of its parameters alone, computed once and not in every call.

Models compute tables of their weights in each call: the bias of a relative position, rotary angles, casts,
joined or normalised weights. Such values are prepared (docs/passes.md), and computed again where a parameter
changes.

Right if: no operator draws at random or writes, and no gradient is asked for. A view of a parameter and what
depends on no parameter stay where they are.

Pays for small batches, where the many small kernels count. It costs the memory of the values.
"""

PREPARES = True
"""This pass has no pattern: the graph's own operators go, wherever they depend on parameters alone."""
