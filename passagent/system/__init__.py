"""Common means of the machine: caches, memory, threads, files that resume, secrets out of text."""
