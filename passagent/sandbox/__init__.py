"""What the kernel offers to shut a process in, and compilers that run shut in. Imports nothing but errors."""
