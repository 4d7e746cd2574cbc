"""Pages of the site that do not lie in docs/: README, commands, changes, how to contribute.

mkdocs calls `on_files` (`hooks` in mkdocs.yml).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from passagent.cli import app

WIDTH = 80
ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages that lie beside docs/, and their names on the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add index.md, reference/commands.md, changelog.md and contributing.md."""
    context = get_command(app).make_context("passagent", [], resilient_parsing=True, terminal_width=WIDTH)
    text = "# Commands\n\nWhat `--help` prints. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.\n\n"
    text += "\n".join(_sections(context))
    files.append(File.generated(config, "reference/commands.md", content=text))
    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=_linked_on_the_site((ROOT / name).read_text())))
    return files


def _linked_on_the_site(text: str) -> str:
    """`text` of a page beside docs/, with links that hold where the site has the pages."""
    for name, page in BESIDE.items():
        text = text.replace(f"]({name})", f"]({page})")
    return text.replace("](docs/", "](")


def _sections(context: Any) -> Iterator[str]:
    """A heading and the help of each command below `context`, depth first."""
    for name, command in getattr(context.command, "commands", {}).items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        below.meta["all"] = True  # every option, as --help-all
        yield f"## `{below.command_path}`\n\n```text\n{below.get_help()}\n```\n"
        yield from _sections(below)
