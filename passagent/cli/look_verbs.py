"""The commands that look at what is stored: `show`, `diff`, `doctor`, `view`, `report` and `hints`."""

from __future__ import annotations

import json as json_text
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from passagent.cli.groups import PageOptions, ShowOptions
from passagent.cli.parameters import argument, command
from passagent.cli.run_verbs import Run
from passagent.errors import UsageError
from passagent.option_groups import Option
from passagent.options import RunsDir
from passagent.sandbox.faults import writing
from passagent.store import Store
from passagent.view.text import Output, console, interval, printable, table

if TYPE_CHECKING:
    from passagent.store.episodes import Episode
    from passagent.store.nodes import Node
    from passagent.store.runs import Run as RunRecord

commands = typer.Typer()
PARTS = ("why", "prompt", "conversation")


@command(commands, context_settings={"ignore_unknown_options": True})  # -1 is an episode: a seed's
def show(
    what: Annotated[
        str,
        argument(
            "WHAT",
            "A node's number; a run's id or 'last'; a task; a directory that export or tasks build wrote.",
        ),
    ],
    number: Annotated[
        int | None, argument("[N]", "An episode of the run (a seed's: 0, -1, ...), or a row of the export.")
    ] = None,
    **options: Unpack[ShowOptions],
) -> None:
    """Show a node, run, episode, task, data set or row of one.

    What it is; and of a node, how it came to be."""
    from passagent.data.export.writing import MANIFEST
    from passagent.data.pipeline.grouping import RECORD
    from passagent.tasks.reader import PREFIX
    from passagent.tasks.tasklist import is_task

    parts = [part for part in PARTS if options.get(part)]
    if len(parts) > 1:
        raise UsageError(f"--{parts[0]} and --{parts[1]} exclude each other")
    path, part = Path(what), parts[0] if parts else None
    is_export, is_built = (path / MANIFEST).is_file(), (path / RECORD).is_file()
    if not (is_export or is_built or what.startswith(PREFIX) or is_task(path)):
        with Store.open(options["runs_dir"], create=False) as store:
            _stored(store, what, number, part).print(options["json"])
        return
    if part is not None:
        raise UsageError(f"--{part} is of a node, an episode or a run; {what} is none")
    if number is not None and not is_export:
        raise UsageError(f"{what}: has no rows; passagent show TASK takes one of its tasks")
    answer = _export(path, number) if is_export else _built(path) if is_built else _task(what)
    answer.print(options["json"])


def _stored(store: Store, what: str, number: int | None, part: str | None) -> Output:
    """Return a node (a number), an episode (a run and its `number`) or a run, or a `part` of it.

    The part of a run is that of its best node, and so of an episode. Raises UsageError for what is not there.
    """
    from passagent.search import finalists
    from passagent.store import episodes, nodes, runs
    from passagent.store.trajectories import find_episode, trajectory
    from passagent.view.node_changes import why_data, why_text
    from passagent.view.run_summary import run_data, run_text
    from passagent.view.trajectory import print_trajectory
    from passagent.view.tree import node_row, run_tree

    node, episode = None, None
    is_run = store.rows(
        "SELECT 1 FROM runs WHERE id = :name OR (substr(id, 1, length(:name)) = :name "
        "AND NOT EXISTS (SELECT 1 FROM nodes WHERE CAST(nodes.id AS TEXT) = :name))",
        {"name": what},
    )
    if what.isdecimal() and number is None and not is_run:
        node = nodes.get_node(store, int(what))
        run = runs.get_run(store, node.run_id)
    else:
        run = runs.find_run(store, what)
        episode = None if number is None else find_episode(store, run, number)
    if node is None and (part == "why" or (part and episode is None)):
        if episode is not None and episode.best_node is None:
            raise UsageError(f"episode {episode.number} of run {run.id} has no correct node")
        best = finalists.winner(store, run.id)
        node = best if episode is None else nodes.get_node(store, episode.best_node or 0)
        if node is None:
            raise UsageError(f"run {run.id}: has no best node yet; give a node or an episode")
    if node is not None and episode is None:
        episode = episodes.get_episode(store, node.episode_id)
    if part == "why" and node is not None:
        data = why_data(store, node)
        return Output(data, lambda: why_text(store, data))
    if part == "prompt" and episode is not None:
        return _prompt(store, run, episode)
    if node is not None and part is None:
        return _node(store, node)
    if episode is not None:
        conversation = trajectory(store, run, episode)
        return Output(
            conversation.model_dump_json(), lambda: print_trajectory(conversation, console(soft_wrap=True))
        )
    data = run_data(store, run)
    with_tree = data | {"tree": [node_row(node) for node in nodes.of_run(store, run.id)]}
    return Output(with_tree, lambda: f"{run_tree(store, run.id)}\n\n{run_text(store, data)}")


def _prompt(store: Store, run: RunRecord, episode: Episode) -> Output:
    """Return the system and the task message that the episode began with, and the tools' names."""
    from passagent.store import episodes

    messages = episodes.conversation(store, episode.id)[:2]
    if not messages:
        source = episode.model
        if run.forked_node is not None:
            source = f"node {run.forked_node} of run {run.forked_run}"
        raise UsageError(f"episode {episode.number} was not written in this run; it is {source}")
    parts = [f"===== {message['role']} =====\n{message['content']}\n" for message in messages]
    parts.append("===== tools =====\n" + "\n".join(tool["name"] for tool in messages[0].get("tools", [])))
    data = {"run": run.id, "episode": episode.number, "messages": messages}
    return Output(data, "\n".join(parts))


def _node(store: Store, node: Node) -> Output:
    """Return the node: where it comes from, its evaluation and its files."""
    from passagent.search.finalists import confirmed_evaluation
    from passagent.store import episodes, nodes
    from passagent.store.sessions import runs_dir_flag
    from passagent.view.evaluation import evaluation_text
    from passagent.view.tree import node_row

    episode = episodes.get_episode(store, node.episode_id)
    evaluation = confirmed_evaluation(store, node) if node.state == "done" else None
    files = nodes.get_files(store, node)
    judged = json_text.loads(evaluation.model_dump_json()) if evaluation else None
    data = node_row(node) | {"run": node.run_id, "episode": episode.number}
    score = interval(evaluation.as_score, evaluation.as_low, evaluation.as_high, 4) if evaluation else "none"
    start = "the task" if node.parent_id is None else f"node {node.parent_id}"
    lines = [
        f"node {node.id} of run {node.run_id}: {node.status or node.state}, AS {score}",
        f"from {start}, in episode {episode.number} of island {node.island}",
        *([printable(node.note)] if node.note else []),
        *([evaluation_text(evaluation)] if evaluation else []),
        *(f"\n--- {name}\n{printable(text.rstrip())}" for name, text in files.items()),
        f"\nhow it came to be: passagent show {node.id} --why{runs_dir_flag(store)} "
        "(or --prompt, --conversation)",
    ]
    return Output(data | {"files": files, "evaluation": judged}, "\n".join(lines))


def _task(name: str) -> Output:
    """Return a task: its subgraphs with their inputs, where they come from, and the first one's text."""
    from passagent.tasks import load_task
    from passagent.tasks.reader import locate

    task = load_task(locate(name))
    graphs = list[dict[str, Any]]()
    for graph in task.subgraphs:
        inputs = [f"{meta.name} {meta.dtype}{list(meta.shape)}" for meta in graph.inputs]
        origin, sizes = graph.facts.get("origin"), graph.facts.get("sizes")
        graphs.append({"name": graph.name, "inputs": inputs, "origin": origin, "sizes": sizes})
    lines = [f"{task.name} ({task.path}): {', '.join(task.operators)}\n{task.subgraphs[0].source}"]
    for row in graphs:
        lines.append(f"{row['name']}: {', '.join(row['inputs'])}")
        if row["origin"]:
            lines.append("  from " + ", ".join(f"{key} {value}" for key, value in row["origin"].items()))
    data = {"task": task.name, "path": str(task.path), "key": task.key, "operators": task.operators}
    return Output(data | {"subgraphs": graphs}, "\n".join(lines))


def _export(path: Path, number: int | None) -> Output:
    """Return what an export holds, or one row of it (from 1)."""
    from passagent.data.export.writing import CARD, read_manifest, read_rows
    from passagent.view.trajectory import print_row

    manifest = read_manifest(path)
    if number is None:
        return Output(manifest, (path / CARD).read_text(encoding="utf-8"))
    row, text = next(islice(read_rows(path), max(number, 1) - 1, None), (None, None))
    if row is None or text is None or number < 1:
        raise UsageError(f"{path}: has no row {number}; it has 1 to {manifest['rows']}")
    content = json_text.loads(text)
    return Output(
        {"provenance": row, "row": content}, lambda: print_row(row, content, console(soft_wrap=True))
    )


def _built(path: Path) -> Output:
    """Return what `tasks build` wrote: what was lost at each step, and the tasks of each list."""
    from passagent.cli.task_verbs import funnel_text
    from passagent.data.pipeline.grouping import read_record

    record = read_record(path)
    lists_table = table(["list", ">tasks"], [[name, str(count)] for name, count in record["tasks"].items()])
    text = f"{funnel_text(record['funnel'])}\n{lists_table}"
    return Output({"directory": str(path), **record}, text)


@command(commands)
def diff(
    first: Annotated[int, argument("A", "A node's number.")],
    second: Annotated[int, argument("B", "Another node's.")],
    store: Store,
) -> Output:
    """Compare nodes A and B. Their files, and the speedup of each subgraph."""
    from passagent.store import nodes
    from passagent.view.node_changes import diff_data, diff_text

    data = diff_data(store, nodes.get_node(store, first), nodes.get_node(store, second))
    return Output(data, diff_text(data))


@command(commands)
def doctor(run: Run, store: Store) -> Output:
    """Check that the mechanisms of RUN work. Gives figures and advice; exit code 1 if a check failed."""
    from passagent.store import runs
    from passagent.view.doctor import examine, findings_text

    record = runs.find_run(store, run)
    findings = examine(store, record)
    data = {"run": record.id, "findings": [finding._asdict() for finding in findings]}
    failed = [finding.check for finding in findings if finding.verdict == "fail"]
    problem = f"run {record.id}: {len(failed)} of {len(findings)} checks failed: {', '.join(failed)}"
    return Output(data, findings_text(record, findings), problem if failed else "")


@command(commands)
def view(
    runs_dir: Annotated[
        str,
        argument("[RUNS_DIR]", "Where runs are stored.", envvar="PASSAGENT_RUNS_DIR", show_default="runs"),
    ] = "runs",
    **options: Unpack[PageOptions],
) -> None:
    """Serve a page to look at runs in a browser, live. Needs passagent[web]; Ctrl-C ends it."""
    try:
        from passagent.view.page.app import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"view needs {error.name}; run: pip install 'passagent[web]'") from error
    serve(Path(runs_dir), options)


@command(commands)
def report(
    run: Run,
    html: Annotated[str | None, Option("The page to write.", metavar="FILE")],
    pictures: Annotated[
        str | None,
        Option("Draw the best so far, the islands and the tree as SVG.", metavar="DIR"),
    ],
    runs_dir: RunsDir,
) -> Output:
    """Write RUN as one HTML file, which opens from disk.

    With --pictures, draw it as SVG files, too."""
    from passagent.sandbox.cache import write_whole
    from passagent.store import runs
    from passagent.view.page.rendering import draw_run, one_file

    if html is None and pictures is None:
        raise UsageError("report needs --html FILE or --pictures DIR; see passagent report --help")
    with Store.open(runs_dir, create=False, to_look=True) as store:
        record = runs.find_run(store, run)
        sizes, left_out = dict[str, int](), list[str]()
        if html is not None:
            text = one_file(store, record)
            with writing(Path(html), "--html"):
                write_whole(Path(html), text)
            sizes[html] = len(text.encode())
        if pictures is not None:
            written, left_out = draw_run(store, record, Path(pictures))
            sizes |= {str(path): path.stat().st_size for path in written}
    lines = [f"run {record.id}: {path} ({count / 1e3:.0f} kB)" for path, count in sizes.items()]
    lines += [f"not drawn: {reason}" for reason in left_out]
    data = {"run": record.id, "files": sizes, "left_out": left_out}
    return Output(data, "\n".join(lines))


@command(commands)
def hints(store: Store) -> Output:
    """List curated and learned hints. With where they come from, and what showing learned ones gains."""
    from passagent.view.hint_report import hint_data, hints_text

    data = hint_data(store)
    return Output(data, hints_text(data))
