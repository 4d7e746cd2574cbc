"""Files that a later run of the same command goes on from."""
