"""Passes in a user's model: packages of them, their operators, and where they go into a graph."""

from passagent.deploy.loading import load_package

__all__ = ["load_package"]
