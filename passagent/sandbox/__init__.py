"""Shut a process in with the kernel's means, and run compilers so. Imports nothing but errors."""
