"""A found pass as a person can review and merge it: what goes, how it reads, and its README."""
