"""What every room may use of the machine: caches, memory, threads, files that resume, secrets out of text."""
