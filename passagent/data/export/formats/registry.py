"""The table of formats: what makes an example's rows, and the files that they go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from passagent.data.export.example import Example
from passagent.data.export.formats import atif, axolotl, llamafactory, lossless, openai, trl
from passagent.data.export.formats.common import Row
from passagent.errors import UsageError, nearest
from passagent.models.wire import clean

Rows = Callable[[Example], Iterator[Row]]


def _none(names: list[str]) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Format:
    """A format: a pure function from an example to rows, and where they go."""

    name: str
    about: str
    """One line for a person."""
    make: Rows
    """An example's rows, as the format's module makes them; `rows` is what is written."""
    file_of: Callable[[Row], str]
    """The name of a row's file in the output directory. The rows of a file have one schema."""
    files: tuple[str, ...] = ()
    """The names that `file_of` gives; (): a document of its own for each row, `*.json`."""
    is_table: bool = True
    """Its rows can be a parquet file."""
    has_provenance: bool = True
    """A row says where it comes from; else only the side file does."""
    extra_files: Callable[[list[str]], dict[str, str]] = _none
    """`extra_files(names)`: name to text of what else the trainer reads; `names`: the data files written."""

    @property
    def is_lines(self) -> bool:
        """A file holds a row a line; else a row is a document."""
        return bool(self.files)

    def rows(self, example: Example) -> Iterator[Row]:
        """The example's rows: JSON-able, and without lone surrogates, which UTF-8 cannot hold."""
        return (clean(row) for row in self.make(example))


def _one(name: str) -> Callable[[Row], str]:
    return lambda row: name


FORMATS = {
    form.name: form
    for form in (
        Format(
            "passagent",
            "everything, as it is stored: passagent.trajectory/1 and columns",
            lossless.rows,
            _one(lossless.FILE),
            (lossless.FILE,),
        ),
        Format("trl", "TRL's SFTTrainer: messages and tools", trl.rows, trl.file_of, (trl.WHOLE, trl.PARTS)),
        Format(
            "openai",
            "OpenAI fine-tuning: messages with weights, tools",
            openai.rows,
            _one(openai.FILE),
            (openai.FILE,),
            is_table=False,
            has_provenance=False,
        ),
        Format(
            "llamafactory",
            "LLaMA-Factory: sharegpt and dataset_info.json",
            llamafactory.rows,
            llamafactory.file_of,
            (llamafactory.WHOLE, llamafactory.LAST),
            extra_files=llamafactory.extra_files,
        ),
        Format(
            "axolotl",
            "axolotl's chat_template strategy: messages with train",
            axolotl.rows,
            _one(axolotl.FILE),
            (axolotl.FILE,),
            extra_files=axolotl.extra_files,
        ),
        Format(
            "atif",
            "ATIF v1.8, the interchange format that harbor reads: a document each",
            atif.rows,
            atif.file_of,
            is_table=False,
        ),
    )
}
"""Every format, by its name."""


def find_format(name: str) -> Format:
    """The format of this name. Raises UsageError."""
    if name not in FORMATS:
        raise UsageError(f"there is no format '{name[:80]}'{nearest(name[:80], list(FORMATS))}")
    return FORMATS[name]
