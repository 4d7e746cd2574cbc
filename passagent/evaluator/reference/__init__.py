"""Eager's side: inputs drawn from an unpredictable seed, and eager's outputs on them."""
