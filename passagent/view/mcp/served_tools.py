"""What each served tool does: a method of its name, called with the arguments that its spec declares."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from passagent.agent.prompt import plain_note, task_text
from passagent.agent.taskfiles import TaskFiles, ToolError
from passagent.agent.toolbox import MAX_PASSAGES, checked, found_code, passages, start_of
from passagent.agent.workspace import Workspace, candidate_files
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.target import target_of
from passagent.experience import knowledge
from passagent.experience.exemplars import Found, Match
from passagent.search.candidates import evaluation_of, limits_of, tell
from passagent.search.run_memory import open_memory
from passagent.search.setup import stored_task
from passagent.store import confirmations, nodes, runs
from passagent.store.episodes import get_episode
from passagent.store.nodes import CANCELLED, Node
from passagent.tasks import Task
from passagent.view.mcp import answers
from passagent.view.mcp.catalog import read_file
from passagent.view.mcp.client_service import Service, is_open
from passagent.view.mcp.jobs import Report, extract_apart, new_directory, package_apart, waited

MAX_NAMED = 50
"""Extracted tasks that are named; list_tasks has all."""


@dataclass(frozen=True)
class Caller:
    """Who calls, and how it is told of progress."""

    client: str
    """`mcp/NAME/VERSION`, as its episodes name their model."""
    report: Report


class Tools:
    """The tools on a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._apart: dict[Path, asyncio.Task[Any]] = {}
        """Commands under way, by the directory that they write."""
        self._profiles: dict[tuple[int, bool], asyncio.Task[str]] = {}
        """Profiles under way, by their job and whether they are deep."""

    async def list_tasks(self, caller: Caller, cursor: str | None = None) -> answers.TaskList:
        start = start_of(cursor)
        names = list(await asyncio.to_thread(self.service.catalog.look))[start:]
        lines = [_line(name, self.service.catalog.task(name)) for name in names[: answers.PAGE]]
        return answers.listed(
            lines,
            start,
            len(names) > len(lines),
            lambda part, more: answers.TaskList(tasks=part, cursor=more),
        )

    async def read_task(
        self, caller: Caller, task: str, path: str | None = None, cursor: str | None = None
    ) -> answers.TextAnswer:
        found = self.service.catalog.task(task)
        text = task_text(await self.service.context(found)) if path is None else read_file(found, path)
        answer = answers.paged(text, cursor, _text)
        self._note(caller, found, "read_task", answer, task=task, path=path, cursor=cursor)
        return answer

    async def check(
        self, caller: Caller, task: str, files: dict[str, str], cursor: str | None = None
    ) -> answers.Checked:
        found = self.service.catalog.task(task)
        evaluator = await self.service.evaluator()
        given = _candidate(found, files, "check")
        work = checked(given, lambda one: evaluator.outline(found.path, Candidate(one)))
        result = await self._soon(work, "the device is busy; call check again, or evaluate")
        is_sound = result.data["is_sound"]
        answer = answers.paged(
            result.text, cursor, lambda part, more: answers.Checked(ok=is_sound, text=part, cursor=more)
        )
        self._note(caller, found, "check", answer, task=task, files=files, cursor=cursor)
        return answer

    async def evaluate(self, caller: Caller, task: str, files: dict[str, str]) -> answers.JobAnswer:
        begun = asyncio.get_running_loop().time()
        found = self.service.catalog.task(task)
        given = _candidate(found, files, "evaluate")
        node = await self.service.evaluate(caller.client, found, task, given)
        passed = asyncio.get_running_loop().time() - begun
        node = await self.service.wait(node.id, self.service.max_wait_s - passed, caller.report)
        return self._answer(node)

    async def wait(
        self, caller: Caller, job: int, seconds: int | None = None, cursor: str | None = None
    ) -> answers.JobAnswer:
        least = self.service.max_wait_s if seconds is None else max(0, seconds)
        return self._answer(await self.service.wait(job, least, caller.report), cursor)

    async def profile(self, caller: Caller, job: int, deep: bool = False) -> answers.TextAnswer:
        node = nodes.get_node(self.service.store, job)
        if node.state != "done":
            raise ToolError(f"job {job} is not done; wait for it")
        run = await self.service.run_of(stored_task(runs.get_run(self.service.store, node.run_id)))
        if (job, deep) not in self._profiles:  # one that takes longer than an answer goes on meanwhile
            work = limits_of(run.session, nodes.get_files(self.service.store, node), deep)
            self._profiles[job, deep] = asyncio.create_task(work)
        under_way = asyncio.shield(self._profiles[job, deep])
        text = await self._soon(under_way, "it is not done yet; call profile again")
        del self._profiles[job, deep]
        return answers.paged(text, None, _text)

    async def cancel(self, caller: Caller, job: int) -> answers.JobAnswer:
        return self._answer(await self.service.cancel(job))

    async def search_knowledge(
        self, caller: Caller, query: str, task: str | None = None
    ) -> answers.TextAnswer:
        found = None if task is None else self.service.catalog.task(task)
        target = target_of(self.service.config.evaluator)
        text = passages(
            knowledge.search(query, found.operators if found else (), limit=MAX_PASSAGES, target=target)
        )
        answer = answers.paged(text, None, _text, fence=False)
        self._note(caller, found, "search_knowledge", answer, query=query, task=task)
        return answer

    async def read_document(self, caller: Caller, path: str, cursor: str | None = None) -> answers.TextAnswer:
        text = knowledge.read(path, target=target_of(self.service.config.evaluator))
        answer = answers.paged(text, cursor, _text, fence=False)
        self._note(caller, None, "read_document", answer, path=path, cursor=cursor)
        return answer

    async def search_code(
        self, caller: Caller, query: str, kind: str | None = None, cursor: str | None = None
    ) -> answers.TextAnswer:
        found = await found_code(target_of(self.service.config.evaluator), query, kind)
        answer = answers.paged(found, cursor, _text)
        self._note(caller, None, "search_code", answer, query=query, kind=kind, cursor=cursor)
        return answer

    async def similar(self, caller: Caller, task: str, cursor: str | None = None) -> answers.Similar:
        found = self.service.catalog.task(task)
        taken = await asyncio.to_thread(self._passes_like, found)
        lines = [
            answers.SimilarLine(
                use=use,
                why=match.why,
                operators=list(match.exemplar.operators),
                device=match.exemplar.device,
                as_score=match.exemplar.as_score,
                licence=match.exemplar.licence,
            )
            for use, match in taken
        ]
        text = "\n".join(
            f"--- {use} {number}: {name}\n{source.rstrip()}"
            for number, (use, match) in enumerate(taken, 1)
            for name, source in sorted(match.exemplar.files.items())
        )
        answer = answers.paged(
            text,
            cursor,
            lambda part, more: answers.Similar(passes=lines, text=part, cursor=more),
        )
        self._note(caller, found, "similar", answer, task=task, cursor=cursor)
        return answer

    def _passes_like(self, task: Task) -> list[tuple[Literal["seed", "example"], Match]]:
        """The passes that a search of the task would use."""
        config = self.service.config
        memory = open_memory(config, task, self.service.store.runs_dir)
        found = memory.find() if memory else Found()
        seed = found.seed if config.experience.seeds else None
        taken: list[tuple[Literal["seed", "example"], Match]] = [("seed", seed)] if seed else []
        return [*taken, *(("example", match) for match in found.examples)]

    async def history(self, caller: Caller, task: str, cursor: str | None = None) -> answers.History:
        found = self.service.catalog.task(task)
        start, page = start_of(cursor), answers.PAGE
        newest = nodes.of_task(self.service.store, found.key, start, page + 1)
        return answers.listed(
            [self._candidate_line(node) for node in newest[:page]],
            start,
            len(newest) > page,
            lambda part, more: answers.History(candidates=part, cursor=more),
        )

    async def best(
        self, caller: Caller, task: str, path: str | None = None, cursor: str | None = None
    ) -> answers.Best:
        found = self.service.catalog.task(task)
        node = self._best(found.key)
        if node is None:
            return answers.Best(job=None, text="nothing is correct on every graph yet")
        files, judged = nodes.get_files(self.service.store, node), evaluation_of(self.service.store, node)
        if path is not None and path not in files:
            raise ToolError(f"{path[:80]}: no such file in job {node.id}; it has {', '.join(sorted(files))}")
        text = tell(self.service.store, node, files) if path is None else files[path]

        def make(part: str, more: str | None) -> answers.Best:
            return answers.Best(
                job=node.id,
                run=node.run_id,
                as_score=answers.finite(node.as_score),
                as_low=answers.finite(judged.as_low),
                as_high=answers.finite(judged.as_high),
                files=[answers.FileLine(path=name, characters=len(one)) for name, one in files.items()],
                text=part,
                cursor=more,
            )

        return answers.paged(text, cursor, make)

    async def package(self, caller: Caller, tasks: list[str], name: str) -> answers.Packaged:
        place = self.service.store.runs_dir / "packages"
        if (place / name) not in self._apart:
            out = new_directory(place, name)
            work = package_apart([self._source(task) for task in tasks], out, self.service.store.runs_dir)
            self._apart[out] = asyncio.create_task(work)
        out = place / name
        if not await waited(self._apart[out], self.service.max_wait_s, caller.report, "packaging"):
            return answers.Packaged(state="running", told="call package again with the same arguments")
        told = self._apart.pop(out).result()
        return answers.Packaged(
            state="done",
            path=str(out),
            operators=told["operators"],
            left_out=told["left_out"],
            told=f'torch.compile(model, backend="passagent", options={{"passes": {json.dumps(str(out))}}})',
        )

    def _source(self, task: str) -> str:
        """The run with the task's best pass. Raises ToolError."""
        node = self._best(self.service.catalog.task(task).key)
        if node is None:
            raise ToolError(f"{task}: nothing is correct on every graph yet; nothing to package")
        return node.run_id

    async def extract(
        self, caller: Caller, factory: str, name: str, regions: bool = True
    ) -> answers.Extracted:
        place = self.service.store.runs_dir / "extracted"
        if (place / name) not in self._apart:
            out = new_directory(place, name)
            self._apart[out] = asyncio.create_task(extract_apart(factory, out, regions))
        out = place / name
        work = self._apart[out]
        if not await waited(work, self.service.max_wait_s, caller.report, "extracting"):
            return answers.Extracted(state="running", told="call extract again with the same arguments")
        del self._apart[out]
        told = answers.fenced(answers.harmless(work.result())[: answers.LIMIT // 2])
        self.service.catalog.add(place)
        found = self.service.catalog.look().items()
        tasks = [task for task, path in found if path.resolve().is_relative_to(out.resolve())]
        return answers.Extracted(state="done", path=str(out), tasks=tasks[:MAX_NAMED], told=told)

    async def _soon(self, work: Awaitable[Any], otherwise: str) -> Any:
        """What `work` gives within an answer's time. Raises ToolError."""
        try:
            async with asyncio.timeout(self.service.max_wait_s):
                return await work
        except TimeoutError as error:
            raise ToolError(otherwise) from error

    def _note(
        self, caller: Caller, about: Task | None, name: str, answer: answers.TextAnswer, **arguments: Any
    ) -> None:
        given = {key: value for key, value in arguments.items() if value is not None}
        self.service.note(caller.client, about, name, given, answer.text)

    def _best(self, task_key: str) -> Node | None:
        """The best correct node of the task's runs that were measured as this server measures."""
        store = self.service.store
        environment = self.service.environment
        found = [
            confirmations.winner(store, run.id)
            for run in runs.list_runs(store)
            if run.task_key == task_key and run.environment == environment
        ]
        return max(
            (one for one in found if one is not None), key=lambda one: one.as_score or 0.0, default=None
        )

    def _candidate_line(self, node: Node) -> answers.CandidateLine:
        episode = get_episode(self.service.store, node.episode_id)
        return answers.CandidateLine(
            job=node.id,
            run=node.run_id,
            parent=node.parent_id,
            status=node.status or node.state,
            as_score=answers.finite(node.as_score),
            author=episode.model or "",
            note=answers.harmless(plain_note(node.note))[:200],
        )

    def _answer(self, node: Node, cursor: str | None = None) -> answers.JobAnswer:
        """How the node stands; a done one in words, as our own agent is told."""
        store, job = self.service.store, self.service.jobs.get(node.id)
        best = self._best(runs.get_run(store, node.run_id).task_key)
        known: dict[str, Any] = {
            "job": node.id,
            "run": node.run_id,
            "best_job": best and best.id,
            "best_as": answers.finite(best.as_score) if best else None,
        }
        if is_open(node):
            error = job.error if job is not None and job.is_done else None
            told = answers.harmless(
                error or (self.service.jobs.line(job) if job else "another server evaluates it")
            )
            next_step = "evaluate the files again to try again" if error else f"call wait({node.id})"
            state = "failed" if error else "running"
            return answers.JobAnswer(**known, state=state, told=told[:2000], text=next_step)
        if node.status == CANCELLED:
            return answers.JobAnswer(**known, state="cancelled", text="evaluate the files again to run it")
        evaluation = evaluation_of(store, node)
        scores = {"as_score": node.as_score, "as_low": evaluation.as_low, "as_high": evaluation.as_high}
        known |= {key: answers.finite(value) for key, value in scores.items()}
        text = tell(store, node, nodes.get_files(store, node), evaluation)

        def make(part: str, more: str | None) -> answers.JobAnswer:
            return answers.JobAnswer(**known, state="done", status=node.status, text=part, cursor=more)

        return answers.paged(text, cursor, make)


def _text(part: str, more: str | None) -> answers.TextAnswer:
    return answers.TextAnswer(text=part, cursor=more)


def _line(name: str, task: Task) -> answers.TaskLine:
    return answers.TaskLine(
        task=name,
        operators=list(task.operators),
        graphs=len(task.subgraphs),
        dtypes=sorted({one.dtype for one in task.subgraphs}),
    )


def _candidate(task: Task, files: dict[str, str], verb: str) -> dict[str, str]:
    """The files, as our own agent could have written them. Raises ToolError."""
    workspace = Workspace(TaskFiles(task.path), {})
    for name, text in files.items():
        workspace.write(name, text)
    return candidate_files(workspace, verb)
