"""Text of a worker's, before anything is done with it."""


def plain(text: str) -> str:
    """Fit for a file, a database and a terminal: no surrogates, no control characters."""
    encoded = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in encoded)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end where it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[len(text) - most // 2 + 2 :]}"
