"""The devices of this machine: found, locked, watched, and whether one is healthy."""
