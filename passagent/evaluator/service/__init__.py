"""Evaluations for a whole program: a referee for each device, a queue before them, results that are kept."""
