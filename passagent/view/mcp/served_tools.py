"""The tools that `passagent mcp` serves: a client sees each method's signature and docstring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from passagent.agent import tool_specs as specs
from passagent.agent.prompt import plain_note, task_text
from passagent.agent.tool_specs import described, method_spec
from passagent.agent.toolbox import MAX_PASSAGES, checked, passages, start_of
from passagent.agent.workspace import ToolError, Workspace, candidate_files
from passagent.config import Config
from passagent.evaluator.candidate import MANIFEST, Candidate
from passagent.evaluator.target import target_of
from passagent.experience import knowledge
from passagent.search import finalists
from passagent.search.candidates import limits_of, tell
from passagent.search.finalists import evaluation_of
from passagent.search.setup import stored_task
from passagent.store import nodes, runs
from passagent.store.episodes import get_episode
from passagent.store.nodes import CANCELLED, Node
from passagent.tasks import Task
from passagent.view.mcp import answers
from passagent.view.mcp.client_service import Report, Service, is_open, read_file

NOTED = {"read_task", "check", "search_knowledge"}
"""Tools whose calls on a task are kept for the client's conversation; `evaluate` keeps its own."""

TaskName = Annotated[str, "a task's name, as list_tasks gives it"]
Files = Annotated[dict[str, str], f"the pass directory: file name to text, *.py modules and {MANIFEST}"]
JobNumber = Annotated[int, "the job's number, as evaluate gave it"]
Query = Annotated[str, specs.QUERY["description"]]
Cursor = Annotated[str | None, specs.CURSOR["description"]]


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
        self.specs = list(SERVED.values())

    async def list_tasks(self, caller: Caller, cursor: Cursor = None) -> answers.Answer:
        """List the tasks: their names, operators and graphs."""
        start = start_of(cursor)
        names = list(await asyncio.to_thread(self.places))[start:]
        lines = []
        for name in names[: answers.PAGE]:
            task = self.task(name)
            lines.append({
                "task": name,
                "operators": list(task.operators),
                "graphs": len(task.subgraphs),
                "dtypes": sorted({graph.dtype for graph in task.subgraphs}),
            })  # fmt: skip
        return answers.listed("tasks", lines, start, len(names) > len(lines))

    async def read_task(
        self,
        caller: Caller,
        task: TaskName,
        path: Annotated[str | None, "such as graph_list.txt; a directory is listed"] = None,
        cursor: Cursor = None,
    ) -> answers.Answer:
        """Read a task: its graphs' sources, shapes and dtypes; or, with path, one of its files."""
        loaded = self.task(task)
        text = task_text(await self.context(loaded)) if path is None else read_file(loaded, path)
        return answers.paged(answers.Answer(text=text), cursor)

    @described(f"Record a pass directory {specs.RECORDS} It is no evaluation; evaluate begins with the same.")
    async def check(
        self, caller: Caller, task: TaskName, files: Files, cursor: Cursor = None
    ) -> answers.Answer:
        loaded, evaluator = self.task(task), await self.pool()
        candidate = _candidate(loaded, files, "check")
        try:
            async with asyncio.timeout(self.max_wait_s):
                result = await checked(
                    candidate, lambda them: evaluator.outline(loaded.path, Candidate(them))
                )
        except TimeoutError as error:
            raise ToolError("the device is busy; call check again, or evaluate") from error
        return answers.paged(answers.Answer(ok=result.data["is_sound"], text=result.text), cursor)

    @described(
        f"Evaluate a pass directory {specs.JUDGES} Tells {specs.TELLS} It waits at most 45 s: if the state "
        "is `running` then, go on with wait(job). The same files again are the same job."
    )
    async def evaluate(self, caller: Caller, task: TaskName, files: Files) -> answers.JobAnswer:
        begun = asyncio.get_running_loop().time()
        loaded = self.task(task)
        node = await self.begin_job(caller.client, loaded, task, _candidate(loaded, files, "evaluate"))
        passed = asyncio.get_running_loop().time() - begun
        return job_answer(self, await self.wait_for(node.id, self.max_wait_s - passed, caller.report))

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
        return job_answer(self, await self.wait_for(job, most, caller.report), cursor)

    @described(f"What limits the candidate of a job that is done: {specs.LIMITS}")
    async def profile(
        self, caller: Caller, job: JobNumber, deep: Annotated[bool, specs.DEEP["description"]] = False
    ) -> answers.Answer:
        node = nodes.get_node(self.store, job)
        if node.state != "done":
            raise ToolError(f"job {job} is not done; wait for it")
        run = await self.run_of(stored_task(runs.get_run(self.store, node.run_id)))
        files = nodes.get_files(self.store, node)
        text = await self.finished(
            (job, deep), lambda: limits_of(run.session, files, deep), caller.report, "profiling"
        )
        if text is None:
            raise ToolError("it is not done yet; call profile again")
        return answers.paged(answers.Answer(text=text), None)

    async def cancel(self, caller: Caller, job: JobNumber) -> answers.JobAnswer:
        """Stop a job that you no longer need."""
        return job_answer(self, await self.cancel_job(job))

    @described(
        f"Search {specs.KNOWS} by keywords; read_document reads a document that was found. With task, what "
        "names its operators comes first."
    )
    async def search_knowledge(
        self, caller: Caller, query: Query, task: TaskName | None = None
    ) -> answers.Answer:
        operators = () if task is None else self.task(task).operators
        target = target_of(self.config.evaluator)
        text = passages(knowledge.search(query, operators, limit=MAX_PASSAGES, target=target))
        return answers.paged(answers.Answer(text=text), None, fence=False)

    async def read_document(
        self, caller: Caller, path: Annotated[str, specs.DOCUMENT["description"]], cursor: Cursor = None
    ) -> answers.Answer:
        """Read a knowledge document. index.md is the map of all."""
        text = knowledge.read(path, target=target_of(self.config.evaluator))
        return answers.paged(answers.Answer(text=text), cursor, fence=False)

    async def history(self, caller: Caller, task: TaskName, cursor: Cursor = None) -> answers.Answer:
        """List what was evaluated on a task so far, by you and by others, the newest first."""
        start, page = start_of(cursor), answers.PAGE
        newest = nodes.of_task(self.store, self.task(task).key, start, page + 1)
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
        return answers.listed("candidates", lines, start, len(newest) > page)

    async def best(
        self,
        caller: Caller,
        task: TaskName,
        path: Annotated[str | None, "a file of it"] = None,
        cursor: Cursor = None,
    ) -> answers.JobAnswer:
        """The best correct pass for a task that was measured on this machine; with path, a file of it."""
        node = self._best(self.task(task).key)
        if node is None:
            return answers.JobAnswer(job=None, text="nothing is correct on every graph yet")
        files = nodes.get_files(self.store, node)
        if path is not None and path not in files:
            raise ToolError(f"{path[:80]}: no such file in job {node.id}; it has {', '.join(sorted(files))}")
        return job_answer(self, node, cursor, None if path is None else files[path])

    def _best(self, task_key: str) -> Node | None:
        """Return the best correct node of the task's runs that were measured as this server measures."""
        winners = [
            finalists.winner(self.store, run.id)
            for run in runs.list_runs(self.store)
            if run.task_key == task_key and run.environment == self.environment
        ]
        return max(filter(None, winners), key=lambda node: node.as_score or 0.0, default=None)


def job_answer(
    service: PassTools, node: Node, cursor: str | None = None, file: str | None = None
) -> answers.JobAnswer:
    """Say how the node stands; a done one in the words that our own agent gets, or by its `file`."""
    best = service._best(runs.get_run(service.store, node.run_id).task_key)
    answer = answers.JobAnswer(
        job=node.id, run=node.run_id, best_job=best and best.id, best_as=best and best.as_score
    )
    if is_open(node):
        line, is_failed = service.job_line(node.id)
        answer.state, answer.told = "failed" if is_failed else "running", answers.harmless(line)[:2000]
        answer.text = "evaluate the files again to try again" if is_failed else f"call wait({node.id})"
        return answer
    if node.status == CANCELLED:
        answer.state, answer.text = "cancelled", "evaluate the files again to run it"
        return answer
    evaluation, files = evaluation_of(service.store, node), nodes.get_files(service.store, node)
    whole = answers.JobAnswer(
        **answer.model_dump(exclude={"state", "status", "as_score", "as_low", "as_high", "text"}),
        state="done",
        status=node.status,
        as_score=node.as_score,
        as_low=evaluation.as_low,
        as_high=evaluation.as_high,
        files={name: len(text) for name, text in files.items()},
        text=tell(service.store, node, files, evaluation) if file is None else file,
    )
    return answers.paged(whole, cursor)


def _candidate(task: Task, files: dict[str, str], verb: str) -> dict[str, str]:
    """Return the files, as our own agent could have written them. Raises ToolError."""
    workspace = Workspace({}, {})
    for name, text in files.items():
        workspace.write(name, text)
    return candidate_files(workspace, verb)


SERVED = {
    name: method_spec(name, method) for name, method in vars(PassTools).items() if not name.startswith("_")
}
"""The tools as a client sees them."""
