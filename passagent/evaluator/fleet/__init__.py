"""Devices of other machines: HTTP workers, and actors of a Ray cluster, behind the one EvaluatorPool."""
