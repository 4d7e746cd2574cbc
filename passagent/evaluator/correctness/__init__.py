"""Decide whether values agree: tolerances by t, exactness against float64, what is left in inputs."""
