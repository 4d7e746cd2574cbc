"""Many tasks, several trials of each, one conversation a trial: trajectories to learn from."""
