"""The operators of a graph that one kernel replaces."""
