"""Products of searches in bulk: collections, training data, environments, benchmarks, tasks."""
