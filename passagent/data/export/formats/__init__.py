"""The forms that an exported example takes: a module each, all in one table. See docs/formats.md."""

from passagent.data.export.formats.registry import FORMATS, Format, find_format

__all__ = ["FORMATS", "Format", "find_format"]
