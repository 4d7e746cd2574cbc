"""The command line, called in this process: a fixture for tests and checks."""

from __future__ import annotations

import functools
import os
import sys

import pytest
import typer


@functools.cache
def _commands():
    """The commands, which typer would build for each call."""
    from passagent import cli

    return typer.main.get_command(cli.app)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """`call("bench", ...)` gives exit code, stdout, stderr of the command in an empty directory."""
    from passagent import cli

    monkeypatch.setattr(cli, "app", _commands())
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PASSAGENT_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PASSAGENT_LIBRARY", "off")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["passagent", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run
