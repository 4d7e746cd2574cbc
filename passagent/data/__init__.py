"""What is made of searches in bulk: collections, training data, environments, benchmarks, tasks."""
