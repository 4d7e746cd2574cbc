"""A found pass as a person can review and merge it: what goes, how it reads, its test and its README."""
