"""Text of a worker's, before anything is done with it."""


def plain(text: str) -> str:
    """Fit for a file, a database and a terminal: no surrogates, no control characters."""
    encoded = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in encoded)
