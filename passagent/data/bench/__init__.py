"""Benchmarks: compilers and passes measured on many tasks, and PassNet's Table 1 of what came out."""
