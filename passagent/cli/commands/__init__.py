"""The commands behind cli.py, a module each, imported only when called."""
