"""A pass as data: what its host code decided, written down, to be checked, compiled and replayed."""
