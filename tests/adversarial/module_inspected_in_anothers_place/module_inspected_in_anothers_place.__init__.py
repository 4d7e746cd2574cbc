"""Innocent, and of the same name as far as inspection can tell."""
