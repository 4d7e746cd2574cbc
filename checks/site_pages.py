"""Pages of the site that do not lie in docs/: every command's `--help`, the changes, and how to contribute.

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/commands.md, changelog.md and contributing.md."""
    context = get_command(app).make_context("passagent", [], resilient_parsing=True, terminal_width=WIDTH)
    text = "# Commands\n\nWhat `--help` prints. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.\n\n"
    text += "\n".join(_sections(context))
    files.append(File.generated(config, "reference/commands.md", content=text))
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text()
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    return files


def _sections(context: Any) -> Iterator[str]:
    """A heading and the help of each command below `context`, depth first."""
    for name, command in getattr(context.command, "commands", {}).items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        below.meta["all"] = True  # every option, as --help-all
        yield f"## `{below.command_path}`\n\n```text\n{below.get_help()}\n```\n"
        yield from _sections(below)
