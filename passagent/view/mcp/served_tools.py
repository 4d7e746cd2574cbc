"""The tools that `passagent mcp` serves: a client sees each method's signature and docstring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from passagent.agent.prompt import plain_note, task_text
from passagent.agent.taskfiles import TaskFiles, ToolError
from passagent.agent.tool_specs import (
    CODE,
    CODE_SPEC,
    CURSOR,
    DEEP,
    DOCUMENT,
    JUDGES,
    KNOWS,
    LIMITS,
    QUERY,
    RECORDS,
    TELLS,
    described,
    method_spec,
)
from passagent.agent.toolbox import MAX_PASSAGES, checked, found_code, passages, start_of
from passagent.agent.workspace import Workspace, candidate_files
from passagent.config import Config
from passagent.evaluator.candidate import MANIFEST, Candidate
from passagent.evaluator.target import target_of
from passagent.experience import knowledge
from passagent.experience.exemplars import Found, Match
from passagent.search import finalists
from passagent.search.candidates import evaluation_of, limits_of, tell
from passagent.search.run_memory import open_memory
from passagent.search.setup import stored_task
from passagent.store import nodes, runs
from passagent.store.episodes import get_episode
from passagent.store.nodes import CANCELLED, Node
from passagent.tasks import Task
from passagent.view.mcp import answers
from passagent.view.mcp.client_service import Service, is_open, read_file
from passagent.view.mcp.jobs import Report, new_directory, run_command, waited

MAX_NAMED = 50
"""Extracted tasks that are named; list_tasks has all."""
NOTED = {"read_task", "check", "search_knowledge", "read_document", "search_code", "similar"}
"""Tools whose calls are kept for the client's conversation; `evaluate` keeps its own."""

TaskName = Annotated[str, "a task's name, as list_tasks gives it"]
Files = Annotated[dict[str, str], f"the pass directory: file name to text, *.py modules and {MANIFEST}"]
JobNumber = Annotated[int, "the job's number, as evaluate gave it"]
Query = Annotated[str, QUERY["description"]]
Cursor = Annotated[str | None, CURSOR["description"]]


@dataclass(frozen=True)
class Caller:
    """A client, and how progress is reported to it."""

    client: str
    """`mcp/NAME/VERSION`, as its episodes name their model."""
    report: Report


class PassTools(Service):
    """The service with its tools: each public method is one."""

    def __init__(self, tasks: Sequence[str], config: Config, runs_dir: str | Path, **more: Any) -> None:
        """Open a service; its arguments are those of Service."""
        super().__init__(tasks, config, runs_dir, **more)
        self.specs = [spec for name, spec in SERVED.items() if name != "extract" or self.trust_files]
        self._commands: dict[Path, asyncio.Task[str]] = {}
        """Commands under way, by the directory that they write."""
        self._profiles: dict[tuple[int, bool], asyncio.Task[str]] = {}
        """Profiles under way, by their job and whether they are deep."""

    async def list_tasks(self, caller: Caller, cursor: Cursor = None) -> answers.TaskList:
        """List the tasks: their names, operators and graphs."""
        start = start_of(cursor)
        names = list(await asyncio.to_thread(self.catalog.look))[start:]
        lines = []
        for name in names[: answers.PAGE]:
            task = self.catalog.task(name)
            lines.append({
                "task": name,
                "operators": list(task.operators),
                "graphs": len(task.subgraphs),
                "dtypes": sorted({graph.dtype for graph in task.subgraphs}),
            })  # fmt: skip
        return answers.listed(answers.TaskList, lines, start, len(names) > len(lines))

    async def read_task(
        self,
        caller: Caller,
        task: TaskName,
        path: Annotated[str | None, "such as graph_list.txt; a directory is listed"] = None,
        cursor: Cursor = None,
    ) -> answers.TextAnswer:
        """Read a task: its graphs' sources, shapes and dtypes; or, with path, one of its files."""
        loaded = self.catalog.task(task)
        text = task_text(await self.context(loaded)) if path is None else read_file(loaded, path)
        return answers.paged(answers.TextAnswer(text=text), cursor)

    @described(f"Record a pass directory {RECORDS} It is no evaluation; evaluate begins with the same.")
    async def check(
        self, caller: Caller, task: TaskName, files: Files, cursor: Cursor = None
    ) -> answers.Checked:
        loaded, evaluator = self.catalog.task(task), await self.evaluator()
        candidate = _candidate(loaded, files, "check")
        try:
            async with asyncio.timeout(self.max_wait_s):
                result = await checked(
                    candidate, lambda them: evaluator.outline(loaded.path, Candidate(them))
                )
        except TimeoutError as error:
            raise ToolError("the device is busy; call check again, or evaluate") from error
        return answers.paged(answers.Checked(ok=result.data["is_sound"], text=result.text), cursor)

    @described(
        f"Evaluate a pass directory {JUDGES} Tells {TELLS} It waits at most 45 s: if the state is "
        "`running` then, go on with wait(job). The same files again are the same job."
    )
    async def evaluate(self, caller: Caller, task: TaskName, files: Files) -> answers.JobAnswer:
        begun = asyncio.get_running_loop().time()
        loaded = self.catalog.task(task)
        node = await self.begin_job(caller.client, loaded, task, _candidate(loaded, files, "evaluate"))
        passed = asyncio.get_running_loop().time() - begun
        return self._answer(await self.wait_for(node.id, self.max_wait_s - passed, caller.report))

    async def wait(
        self,
        caller: Caller,
        job: JobNumber,
        seconds: Annotated[int | None, "wait so long at most, 0 to 45; default 45"] = None,
        cursor: Cursor = None,
    ) -> answers.JobAnswer:
        """Wait for a job, and read its result.

        Call it as often as you like, also after a restart of the server.
        """
        most = self.max_wait_s if seconds is None else max(0, seconds)
        return self._answer(await self.wait_for(job, most, caller.report), cursor)

    @described(f"What limits the candidate of a job that is done: {LIMITS}")
    async def profile(
        self, caller: Caller, job: JobNumber, deep: Annotated[bool, DEEP["description"]] = False
    ) -> answers.TextAnswer:
        node = nodes.get_node(self.store, job)
        if node.state != "done":
            raise ToolError(f"job {job} is not done; wait for it")
        run = await self.run_of(stored_task(runs.get_run(self.store, node.run_id)))
        if (job, deep) not in self._profiles:  # one that takes longer than an answer goes on meanwhile
            work = limits_of(run.session, nodes.get_files(self.store, node), deep)
            self._profiles[job, deep] = asyncio.create_task(work)
        if not await waited(self._profiles[job, deep], self.max_wait_s, caller.report, lambda: "profiling"):
            raise ToolError("it is not done yet; call profile again")
        text = self._profiles.pop((job, deep)).result()
        return answers.paged(answers.TextAnswer(text=text), None)

    async def cancel(self, caller: Caller, job: JobNumber) -> answers.JobAnswer:
        """Stop a job that you no longer need."""
        return self._answer(await self.cancel_job(job))

    @described(
        f"Search {KNOWS} by keywords; read_document reads a document that was found. With task, what "
        "names its operators comes first."
    )
    async def search_knowledge(
        self, caller: Caller, query: Query, task: TaskName | None = None
    ) -> answers.TextAnswer:
        operators = () if task is None else self.catalog.task(task).operators
        target = target_of(self.config.evaluator)
        text = passages(knowledge.search(query, operators, limit=MAX_PASSAGES, target=target))
        return answers.paged(answers.TextAnswer(text=text), None, fence=False)

    async def read_document(
        self, caller: Caller, path: Annotated[str, DOCUMENT["description"]], cursor: Cursor = None
    ) -> answers.TextAnswer:
        """Read a knowledge document. index.md is the map of all."""
        text = knowledge.read(path, target=target_of(self.config.evaluator))
        return answers.paged(answers.TextAnswer(text=text), cursor, fence=False)

    async def search_code(
        self, caller: Caller, query: Query, kind: str | None = None, cursor: Cursor = None
    ) -> answers.TextAnswer:
        """Search code, as CODE_SPEC describes it."""
        text = await found_code(target_of(self.config.evaluator), query, kind)
        return answers.paged(answers.TextAnswer(text=text), cursor)

    async def similar(self, caller: Caller, task: TaskName, cursor: Cursor = None) -> answers.Similar:
        """Read passes that worked for this task or for similar ones, and why each was taken."""
        taken = await asyncio.to_thread(self._passes_like, self.catalog.task(task))
        lines, texts = [], []
        for number, (use, match) in enumerate(taken, 1):
            exemplar = match.exemplar
            lines.append({
                "use": use,
                "why": match.why,
                "operators": list(exemplar.operators),
                "device": exemplar.device,
                "as_score": exemplar.as_score,
                "licence": exemplar.licence,
            })  # fmt: skip
            for name, source in sorted(exemplar.files.items()):
                texts.append(f"--- {use} {number}: {name}\n{source.rstrip()}")
        return answers.paged(answers.Similar(passes=lines, text="\n".join(texts)), cursor)

    def _passes_like(self, task: Task) -> list[tuple[Literal["seed", "example"], Match]]:
        """Return the passes that a search of the task would use."""
        memory = open_memory(self.config, task, self.store.runs_dir)
        matches = memory.find() if memory else Found()
        seed = matches.seed if self.config.experience.seeds else None
        taken: list[tuple[Literal["seed", "example"], Match]] = [("seed", seed)] if seed else []
        return [*taken, *(("example", match) for match in matches.examples)]

    async def history(self, caller: Caller, task: TaskName, cursor: Cursor = None) -> answers.History:
        """List what was evaluated on a task so far, by you and by others, the newest first."""
        start, page = start_of(cursor), answers.PAGE
        newest = nodes.of_task(self.store, self.catalog.task(task).key, start, page + 1)
        lines = [
            {
                "job": node.id,
                "run": node.run_id,
                "parent": node.parent_id,
                "status": node.status or node.state,
                "as_score": answers.finite(node.as_score),
                "author": get_episode(self.store, node.episode_id).model or "",
                "note": answers.harmless(plain_note(node.note))[:200],
            }
            for node in newest[:page]
        ]
        return answers.listed(answers.History, lines, start, len(newest) > page)

    async def best(
        self,
        caller: Caller,
        task: TaskName,
        path: Annotated[str | None, "a file of it"] = None,
        cursor: Cursor = None,
    ) -> answers.Best:
        """The best correct pass for a task that was measured on this machine; with path, a file of it."""
        node = self._best(self.catalog.task(task).key)
        if node is None:
            return answers.Best(job=None, text="nothing is correct on every graph yet")
        files, evaluation = nodes.get_files(self.store, node), evaluation_of(self.store, node)
        if path is not None and path not in files:
            raise ToolError(f"{path[:80]}: no such file in job {node.id}; it has {', '.join(sorted(files))}")
        whole = answers.Best(
            job=node.id,
            run=node.run_id,
            as_score=node.as_score,
            as_low=evaluation.as_low,
            as_high=evaluation.as_high,
            files=[{"path": name, "characters": len(text)} for name, text in files.items()],
            text=tell(self.store, node, files) if path is None else files[path],
        )
        return answers.paged(whole, cursor)

    async def package(
        self,
        caller: Caller,
        tasks: Annotated[list[TaskName], "tasks that have a correct pass"],
        name: Annotated[str, "of the package: letters, digits, - and _"],
    ) -> answers.Written:
        """Write the best passes of tasks as one package, which torch.compile loads."""
        place = self.store.runs_dir / "packages"

        def words() -> list[str]:
            best = {task: self._best(self.catalog.task(task).key) for task in tasks}
            for task, node in best.items():
                if node is None:
                    raise ToolError(f"{task}: nothing is correct on every graph yet; nothing to package")
            run_ids = [node.run_id for node in best.values() if node]
            return ["package", *run_ids, "--runs-dir", str(self.store.runs_dir), "--json"]

        output = await self._output(caller, place, name, words)
        if output is None:
            return answers.Written(state="running", told="call package again with the same arguments")
        out = place / name
        use = f'torch.compile(model, backend="passagent", options={{"passes": {json.dumps(str(out))}}})'
        packed = json.loads(output)
        return answers.Written(
            state="done", path=str(out), operators=packed["operators"], left_out=packed["left_out"], told=use
        )

    async def extract(
        self,
        caller: Caller,
        factory: Annotated[str, "FILE.py:FUNCTION; the function returns `module, example_inputs`"],
        name: Annotated[str, "of the new tasks: letters, digits, - and _"],
        regions: Annotated[
            bool, "cut the model into the regions that Inductor would fuse; default true"
        ] = True,
    ) -> answers.Written:
        """Write the graphs of a model as tasks. It runs the model's code without a sandbox."""
        place = self.store.runs_dir / "extracted"
        words = ["extract", factory, *(["--regions"] if regions else [])]
        output = await self._output(caller, place, name, lambda: words)
        if output is None:
            return answers.Written(state="running", told="call extract again with the same arguments")
        self.catalog.add(place)
        out, places = place / name, self.catalog.look().items()
        tasks = [task for task, path in places if path.resolve().is_relative_to(out.resolve())]
        fenced_output = answers.fenced(answers.harmless(output)[: answers.LIMIT // 2])
        return answers.Written(state="done", path=str(out), tasks=tasks[:MAX_NAMED], told=fenced_output)

    async def _output(
        self, caller: Caller, place: Path, name: str, words: Callable[[], list[str]]
    ) -> str | None:
        """Return what the command `words()`, which writes `name` in `place`, prints; None while it runs.

        Raises ToolError.
        """
        if place / name not in self._commands:
            out = new_directory(place, name)
            command = [*words(), "--out", str(out)]
            self._commands[out] = asyncio.create_task(run_command(command))
        work = self._commands[place / name]
        if not await waited(work, self.max_wait_s, caller.report, lambda: "under way"):
            return None
        return self._commands.pop(place / name).result()

    def _best(self, task_key: str) -> Node | None:
        """Return the best correct node of the task's runs that were measured as this server measures."""
        winners = [
            finalists.winner(self.store, run.id)
            for run in runs.list_runs(self.store)
            if run.task_key == task_key and run.environment == self.environment
        ]
        return max(filter(None, winners), key=lambda node: node.as_score or 0.0, default=None)

    def _answer(self, node: Node, cursor: str | None = None) -> answers.JobAnswer:
        """Say how the node stands; a done one in the words that our own agent gets."""
        best = self._best(runs.get_run(self.store, node.run_id).task_key)
        fields: dict[str, Any] = {
            "job": node.id,
            "run": node.run_id,
            "best_job": best and best.id,
            "best_as": best and best.as_score,
        }
        if is_open(node):
            job = self.jobs.get(node.id)
            error = job.error if job is not None and job.is_done else None
            line = error or (self.jobs.line(job) if job else "another server evaluates it")
            next_step = "evaluate the files again to try again" if error else f"call wait({node.id})"
            state: Literal["failed", "running"] = "failed" if error else "running"
            return answers.JobAnswer(
                **fields, state=state, told=answers.harmless(line)[:2000], text=next_step
            )
        if node.status == CANCELLED:
            return answers.JobAnswer(**fields, state="cancelled", text="evaluate the files again to run it")
        evaluation = evaluation_of(self.store, node)
        fields |= {"as_score": node.as_score, "as_low": evaluation.as_low, "as_high": evaluation.as_high}
        text = tell(self.store, node, nodes.get_files(self.store, node), evaluation)
        return answers.paged(answers.JobAnswer(**fields, state="done", status=node.status, text=text), cursor)


def _candidate(task: Task, files: dict[str, str], verb: str) -> dict[str, str]:
    """Return the files, as our own agent could have written them. Raises ToolError."""
    workspace = Workspace(TaskFiles(task.path), {})
    for name, text in files.items():
        workspace.write(name, text)
    return candidate_files(workspace, verb)


SERVED = {
    name: CODE_SPEC if name == CODE else method_spec(name, method)
    for name, method in vars(PassTools).items()
    if not name.startswith("_")
}
"""The tools as a client sees them; `search_code` is our agent's own."""
