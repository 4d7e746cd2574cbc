"""`passagent collect`: many tasks, several trials of each, and PassNet's figures about what came of them."""

from __future__ import annotations

import asyncio
import json
import sys

from passagent.cli.commands.signals import Interrupted, stop_on_signals
from passagent.data.collect import campaign
from passagent.data.collect.campaign import Collected, Request
from passagent.data.collect.work import Collection
from passagent.errors import PassagentError
from passagent.search.startup import Parts
from passagent.store.pass_library import library_path, library_text
from passagent.view import collect_table
from passagent.view.collect_progress import CollectProgress
from passagent.view.text import counted

_GO_ON = "interrupted; everything is stored, the same command goes on"


def collect(request: Request, as_json: bool, parts: Parts | None = None) -> None:
    """Make the trials that are not made yet, then print the table.

    Raises PassagentError if too many tasks are broken or the machine failed a trial (after the table),
    Interrupted after Ctrl-C, UsageError before anything is written.
    """
    stream = sys.stderr if as_json else sys.stdout
    with campaign.prepared(request, parts) as prepared:
        listing, config = prepared.listing, prepared.config
        print(
            f"{counted(len(listing.entries), 'task')}, {counted(len(prepared.pairs), 'trial')}, "
            f"{len(prepared.done)} of them made before; {config.model.label}, {config.evaluator.device}; "
            f"{library_text(library_path(config.experience.library, prepared.store.runs_dir))}; "
            f"log: {prepared.log}",
            file=stream,
            flush=True,
        )
        for path, first in listing.equal:
            print(f"note: {path} is the same task as {first}: it is collected once", file=stream)
        if listing.broken:
            print(f"note: {counted(len(listing.broken), 'task')} cannot be loaded, see the end", file=stream)
        progress = CollectProgress(prepared.summary(), len(prepared.pairs), stream)

        def begun(collection: Collection) -> None:
            stop_on_signals(collection, progress, "the same command goes on")

        try:
            collected = asyncio.run(campaign.work(prepared, progress, begun))
        except KeyboardInterrupt as error:  # before or after the conversations, which take signals themselves
            raise Interrupted(_GO_ON) from error
        finally:
            progress.close()
    _print(collected, as_json)
    if collected.is_interrupted:
        raise Interrupted(_GO_ON)
    if collected.failed:
        run_id, reason = next(iter(collected.failed.items()))
        raise PassagentError(
            f"{counted(len(collected.failed), 'trial')} failed, such as run {run_id}: {reason}; "
            "the same command tries again"
        )
    if collected.too_broken is not None:
        raise collected.too_broken


def _print(collected: Collected, as_json: bool) -> None:
    if as_json:
        print(json.dumps(collect_table.all_data(collected)))
        return
    print(collect_table.text(collected.summaries))
    for path, reason in collected.broken.items():
        print(f"broken: {path}: {reason}")
    for run_id, reason in collected.failed.items():
        print(f"failed: run {run_id}: {reason}")
    left = collected.unfinished
    if collected.stopped is not None and not collected.is_interrupted:
        print(f"stopped: {collected.stopped}; with a larger limit the same command goes on")
    elif left and not collected.is_interrupted:
        print(
            f"{counted(len(left), 'trial')} not finished, such as run {left[0]['run']}: {left[0]['reason']}; "
            "the same command goes on"
        )
