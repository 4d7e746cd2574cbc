"""The forms that an exported example takes, all in one table. See docs/formats.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from passagent.data.export.example import FILES, Example, FileRow
from passagent.data.export.formats import atif, llamafactory
from passagent.data.export.formats.chat_messages import (
    PARTS,
    TRAIN,
    WHOLE,
    axolotl_files,
    axolotl_rows,
    openai_rows,
    trl_rows,
)
from passagent.models.wire import clean


@dataclass(frozen=True)
class Format:
    """A format: a pure function from an example to rows, and the files that they go to."""

    name: str
    about: str
    """One line for a person."""
    make: Callable[[Example], Iterator[FileRow]]
    """Makes an example's rows, each with the name of its file; `rows` is what is written."""
    files: tuple[str, ...] = ()
    """The files, each with a row a line and rows of one schema; (): a document for each row, `*.json`."""
    is_table: bool = True
    """Its rows can be a parquet file."""
    extra_files: Callable[[list[str]], dict[str, str]] = lambda names: {}
    """`extra_files(names)`: name to text of what else the trainer reads; `names`: the data files written."""

    def rows(self, example: Example) -> Iterator[FileRow]:
        """Return the rows: JSON-able, and without lone surrogates, which UTF-8 cannot hold."""
        return ((file, clean(row)) for file, row in self.make(example))


def _stored(example: Example) -> Iterator[FileRow]:
    """Make a line that `Trajectory` reads, its `columns` and `files` filled in."""
    columns = dict(example.columns)
    files = {FILES: columns.pop(FILES)} if FILES in columns else {}
    yield "episodes.jsonl", {**example.trajectory.model_dump(), "columns": columns, **files}


FORMATS = {
    form.name: form
    for form in (
        Format("passagent", "everything, as it is stored", _stored, ("episodes.jsonl",)),
        Format("trl", "TRL's SFTTrainer: messages and tools", trl_rows, (WHOLE, PARTS)),
        Format("openai", "OpenAI fine-tuning: messages with weights", openai_rows, (TRAIN,), is_table=False),
        Format(
            "llamafactory",
            "LLaMA-Factory: sharegpt and dataset_info.json",
            llamafactory.rows,
            (llamafactory.WHOLE, llamafactory.LAST),
            extra_files=llamafactory.extra_files,
        ),
        Format(
            "axolotl",
            "axolotl's chat_template strategy: messages with train",
            axolotl_rows,
            (TRAIN,),
            extra_files=axolotl_files,
        ),
        Format("atif", "ATIF v1.8, which harbor reads: a document each", atif.rows, is_table=False),
    )
}
"""Every format, by its name."""
