"""Other people's problems as tasks: found on disk, run shut in, written in the layout of a task."""
