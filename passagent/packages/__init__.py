"""Passes in a user's model: packages of them, their operators, and where they go into a graph."""
