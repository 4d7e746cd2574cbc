"""Decide whether values agree: tolerances by t, precision against float64, what is left in inputs."""
