"""Look at runs, stop and remove them: `runs`, `status`, `diff`, `doctor`, `report`, `stop`, `hints`."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from passagent.errors import PassagentError, UsageError
from passagent.store import Store, nodes, runs, sessions, timeline
from passagent.store.sessions import resume_command, runs_dir_flag
from passagent.view.difference import diff_data, diff_text
from passagent.view.doctor import examine, findings_text
from passagent.view.event_lines import event_text
from passagent.view.hint_report import hint_data, hints_text
from passagent.view.run_summary import run_row, shown_state, status_data, status_text
from passagent.view.text import clock, number, print_answer, table

POLL_S = 0.25
"""Time between two looks of `status --follow` at the database, s."""


def list_runs(runs_dir: str, as_json: bool) -> None:
    """Print all runs, the newest first."""
    with Store.open(runs_dir, create=False) as store:
        listed = [run_row(store, run) for run in runs.list_runs(store)]
    rows = [
        [
            *(run["run"], run["created_at"][:16].replace("T", " "), run["task"], run["model"], run["device"]),
            *(
                run["state"],
                f"{run['episodes']}/{'-' if run['iters'] is None else run['iters']}",
                number(run["best_as"]),
                f"{number(run['seed'])} ({run['seed_from'].split()[0]})" if run["seed_from"] else "-",
            ),
            clock(run["elapsed_s"]),
        ]
        for run in listed
    ]
    header = ["run", "begun (UTC)", "task", "model", "device", "state", ">episodes", ">best AS", "seed"]
    header.append(">time")
    drop = ["device", "begun (UTC)", "time", "model", "seed"]
    print_answer(as_json, {"runs": listed}, lambda: table(header, rows, indent="", drop=drop))


def status(name: str | None, runs_dir: str, as_json: bool) -> None:
    """Print the state of a run; without a name that of all live ones, or of the newest. Raises UsageError."""
    with Store.open(runs_dir, create=False) as store:
        live = [run for run in runs.list_runs(store) if sessions.is_driven(store, run.id)]
        listed = [runs.find_run(store, name or "last")] if name is not None or not live else live
        data = [status_data(store, run) for run in listed]
        one_or_all = data[0] if name is not None else {"runs": data}
        print_answer(as_json, one_or_all, lambda: "\n\n".join(status_text(store, of) for of in data))


def follow(name: str, count: int, runs_dir: str, as_json: bool) -> None:
    """Print a run's last `count` events, then those to come, until no process works on it."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        roles = {island.island: island.role for island in runs.islands(store, run.id)}
        events, position = timeline.newest(store, run.id, count)
        is_live = True
        while True:
            for event in events:
                print(json.dumps(event.as_json()) if as_json else event_text(event, roles), flush=True)
            if not is_live:
                break
            # asked before looking, so that what a process did before it left is seen, too
            is_live = sessions.is_driven(store, run.id)
            if is_live:
                time.sleep(POLL_S)
            events = timeline.since(store, run.id, position)
        if not as_json:
            run = runs.get_run(store, run.id)
            print(f"run {run.id} is {shown_state(store, run)}: {run.stop_reason or 'no process works on it'}")


def stop(name: str, after_episodes: bool, runs_dir: str, as_json: bool) -> None:
    """Ask a live run to stop. Raises UsageError if no process works on it."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        driver = sessions.ask_to_stop(store, run, after_episodes)
        process = driver._asdict() if driver else None
        wanted = runs.get_run(store, run.id).wanted
        data = {"run": run.id, "wanted": wanted, "was": run.wanted, "process": process}
        finished = "model calls under way are finished and stored, evaluations only if they end in time"
        if after_episodes:
            finished = "the episodes under way are finished first"
        go_on = resume_command(store, run.id)
        text = f"run {run.id}: asked to stop; {finished}; go on with {go_on}"
        print_answer(as_json, data, lambda: text)


def diff(first: int, second: int, runs_dir: str, as_json: bool) -> None:
    """Print what two nodes differ in. Raises UsageError if there is no such node."""
    with Store.open(runs_dir, create=False) as store:
        data = diff_data(store, nodes.get_node(store, first), nodes.get_node(store, second))
    print_answer(as_json, data, lambda: diff_text(data))


def doctor(name: str, runs_dir: str, as_json: bool) -> None:
    """Print what the checks of a run's mechanisms found. Raises PassagentError if one failed."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        findings = examine(store, run)
    data = {"run": run.id, "findings": [finding._asdict() for finding in findings]}
    print_answer(as_json, data, lambda: findings_text(run, findings))
    failed = [finding.check for finding in findings if finding.verdict == "fail"]
    if failed:
        raise PassagentError(
            f"run {run.id}: {len(failed)} of {len(findings)} checks failed: {', '.join(failed)}"
        )


def report(name: str, html: str | None, pictures: str | None, runs_dir: str, as_json: bool) -> None:
    """Write a run as one HTML file, and its pictures into a directory.

    Raises UsageError if there is no such run or a file cannot be written.
    """
    from passagent.system.cache import write_whole
    from passagent.system.faults import os_fault
    from passagent.view.page.one_file import one_file
    from passagent.view.pictures import draw_run

    if html is None and pictures is None:
        raise UsageError("report needs --html FILE or --pictures DIR; see passagent report --help")
    with Store.open(runs_dir, create=False, to_look=True) as store:
        run = runs.find_run(store, name)
        sizes, left_out = dict[str, int](), list[str]()
        if html is not None:
            text = one_file(store, run)
            try:
                write_whole(Path(html), text)
            except OSError as error:
                raise os_fault(error, Path(html), "--html") from error
            sizes[html] = len(text.encode())
        if pictures is not None:
            written, left_out = draw_run(store, run, Path(pictures))
            sizes |= {str(path): path.stat().st_size for path in written}
    lines = [f"run {run.id}: {path} ({count / 1e3:.0f} kB)" for path, count in sizes.items()]
    lines += [f"not drawn: {reason}" for reason in left_out]
    print_answer(as_json, {"run": run.id, "files": sizes, "left_out": left_out}, lambda: "\n".join(lines))


def remove_runs(names: list[str], yes: bool, runs_dir: str, as_json: bool) -> None:
    """Remove runs with all that is theirs alone, after asking. Raises UsageError if one is live."""
    with Store.open(runs_dir, create=False) as store:
        chosen = list({run.id: run for run in (runs.find_run(store, name) for name in names)}.values())
        for run in chosen:
            if sessions.is_driven(store, run.id):
                raise sessions.driven(store, run.id)
        if not yes and not _agrees([f"{run.id} ({run.task}, begun {run.created_at[:16]})" for run in chosen]):
            return
        runs.for_removal(store)
        removed = {}
        with store.transaction():
            for run in chosen:
                if sessions.is_driven(store, run.id):
                    raise UsageError(f"run {run.id} was taken up meanwhile; nothing was removed")
                removed[run.id] = runs.remove_run(store, run.id)
        for run in chosen:
            shutil.rmtree(store.runs_dir / run.id, ignore_errors=True)
        lines = []
        for name, counts in removed.items():
            hints = f", {counts.hints} hints distilled from it" if counts.hints else ""
            rows = f"{counts.nodes} nodes, {counts.evaluations} evaluations, {counts.messages} messages"
            lines.append(f"removed run {name}: {rows}{hints}")
        lines.append(f"passagent gc{runs_dir_flag(store)} frees the space")
    data = {"removed": {name: counts._asdict() for name, counts in removed.items()}}
    print_answer(as_json, data, lambda: "\n".join(lines))


def _agrees(descriptions: list[str]) -> bool:
    """Return whether the person at the terminal agrees. Raises UsageError where there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError("passagent runs rm asks before it removes; without a terminal say --yes")
    print(f"remove {', '.join(descriptions)} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def list_hints(runs_dir: str, as_json: bool) -> None:
    """Print the learned hints of a runs directory, the newest first, and the curated ones."""
    with Store.open(runs_dir, create=False) as store:
        data = hint_data(store)
    print_answer(as_json, data, lambda: hints_text(data))
