"""passagent: search for correct, honest and fast PyTorch compiler passes with an LLM."""

__version__ = "0.1.0"
