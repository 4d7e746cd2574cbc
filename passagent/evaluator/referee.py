"""The referee: the trusted side of an evaluation. It owns inputs, references, the clock and the verdict.

A candidate is inspected as text, then loaded in an expendable worker. For each subgraph the referee draws
inputs from an unpredictable seed, has a baseline worker (trusted code only) compute eager's outputs on
private copies, has the candidate compute its own under the dispatch guard, compares bytes here, and times
both sides in turn. Nothing that a candidate says is believed but its outputs and its clock, and the clock is
audited. `Referee.evaluate` returns data; nobody parses logs.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

import torch

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, UsageError
from passagent.evaluator import score
from passagent.evaluator.baseline import Baseline, Reference, graph_request
from passagent.evaluator.channel import Arena
from passagent.evaluator.compare import Comparison, compare
from passagent.evaluator.environment import worker_threads
from passagent.evaluator.guards import static
from passagent.evaluator.process import Worker, WorkerDied, WorkerTimeout, Zygote, last_line
from passagent.evaluator.result import Candidate, Evaluation, GraphResult, Mismatch, Violation
from passagent.evaluator.timing import TimedCallError, measure, run_request
from passagent.evaluator.verdict import Failed, Refused, blank, conclude, fill_times, raise_for
from passagent.tasks.reader import Subgraph, Task

_DEATHS = 2
"""Workers that a candidate may lose before the rest of its subgraphs is not run."""

Verify = Callable[[int, dict[str, Any]], Comparison]


class Referee:
    """Judges candidates on one device. Not for concurrent use; `close()` ends its processes."""

    def __init__(self, config: EvaluatorConfig | None = None) -> None:
        self.config = config or EvaluatorConfig()
        check_device(self.config.device)
        self._threads = worker_threads(self.config.threads)
        self._zygote = Zygote(self.config.device, self._threads)
        self._interpreter: Zygote | None = None
        self._baseline = Baseline(self._zygote, self.config)

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this referee."""
        self._zygote.close()
        if self._interpreter is not None:
            self._interpreter.close()

    def evaluate(self, task: Task, candidate: Candidate) -> Evaluation:
        """Judge `candidate` on every subgraph of `task`.

        Raises TaskError if eager itself fails on a subgraph, InfrastructureError if the machine does.
        """
        started = time.monotonic()
        interpreter = self.config.device == "cpu" and uses_triton(candidate)
        violations = static.inspect(candidate)
        if violations:
            error = "broke an integrity rule; see violations"
            graphs = [blank(subgraph, "refused", error) for subgraph in task.subgraphs]
        else:
            graphs = self._run(task, candidate, interpreter, violations)
        seconds = time.monotonic() - started
        return conclude(
            task, candidate, self.config, graphs, violations, interpreter=interpreter, seconds=seconds
        )

    def _run(
        self, task: Task, candidate: Candidate, interpreter: bool, violations: list[Violation]
    ) -> list[GraphResult]:
        """Each subgraph's result. A worker serves all subgraphs unless it dies; violations are collected."""
        graphs: list[GraphResult] = []
        worker: Worker | None = None
        deaths = 0
        stop: Failed | None = None
        for subgraph in task.subgraphs:
            if stop is not None:
                graphs.append(blank(subgraph, stop.status, stop.message))
                continue
            result = blank(subgraph, "ok")
            graphs.append(result)
            try:
                if worker is None:
                    worker = self._fork(interpreter)
                    stop = self._load(worker, candidate)
                if stop is not None:
                    raise stop
                self._judge(worker, subgraph, result, interpreter)
            except Failed as failure:
                result.status, result.error = failure.status, failure.message
            except Refused as refused:
                result.status, result.error, result.speedup = "refused", str(refused), None
                violations += [v for v in refused.violations if v not in violations]
            except WorkerTimeout:
                result.status = "timeout"
                result.error = f"no answer within {self.config.timeout_s:.0f} s; its processes were killed"
                stop, worker = Failed("timeout", f"not run after the time-out on {subgraph.name}"), None
            except WorkerDied as death:
                if death.killed_from_outside:
                    raise InfrastructureError(f"a worker {death.describe()}") from death
                result.status = "runtime_error"
                result.error = f"the process {death.describe()}{last_line(death.log)}"
                deaths, worker = deaths + 1, None
                if deaths == _DEATHS:
                    stop = Failed("runtime_error", f"not run: {deaths} processes died before it")
        if worker is not None:
            worker.kill()
        return graphs

    def _fork(self, interpreter: bool) -> Worker:
        if interpreter and self._interpreter is None:
            self._interpreter = Zygote(self.config.device, self._threads, interpreter=True)
        zygote = self._interpreter if interpreter and self._interpreter else self._zygote
        return zygote.fork(self.config.memory_gb if self.config.device == "cpu" else None)

    def _load(self, worker: Worker, candidate: Candidate) -> Failed | None:
        """Load the candidate's modules. A failure is every subgraph's; Refused is raised."""
        request = {
            "op": "load",
            "files": candidate.files,
            "device": self.config.device,
            "dispatch": self.config.dispatch,
            "single_replacement_func": self.config.single_replacement_func,
        }
        try:
            reply = worker.ask(request, self.config.timeout_s).message
            if "error" in reply:
                raise_for(reply["error"])
        except Failed as failure:
            status = "load_error" if failure.status == "runtime_error" else failure.status
            return Failed(status, failure.message)
        except WorkerDied as death:
            if death.killed_from_outside:
                raise
            return Failed("load_error", f"loading: the process {death.describe()}{last_line(death.log)}")
        return None

    def _judge(self, worker: Worker, subgraph: Subgraph, result: GraphResult, interpreter: bool) -> None:
        reference = self._baseline.reference(subgraph)
        outputs = Arena.create(max(Arena.room(tensors) for tensors in reference.outputs))
        try:
            request = graph_request(subgraph, reference.described, reference.arena, outputs)
            reply = worker.ask(request, self.config.timeout_s, (reference.arena.fd, outputs.fd)).message
            if "error" in reply:
                raise_for(reply["error"])
            result.matches, result.applied = int(reply["matches"]), [str(name) for name in reply["applied"]]
            result.mismatches = [Mismatch.model_validate(item) for item in reply["mismatches"]]
            result.nodes_before, result.nodes_after = int(reply["nodes_before"]), int(reply["nodes_after"])
            if result.matches == 0:
                raise Failed("mismatch", "no pass matched this graph")
            verify = _verifier(reference, outputs)
            self._check(worker, reference, result, verify)
            if not interpreter:
                self._time(worker, reference, result, verify)
        finally:
            outputs.close()
            reference.close()

    def _check(self, worker: Worker, reference: Reference, result: GraphResult, verify: Verify) -> None:
        """Outputs on every input set, under the guard; raises Failed if they agree with eager's at no t."""
        level = score.T_RANGE[0]
        for chosen in range(len(reference.outputs)):
            request = run_request(
                chosen, 1, reference.mutated, guard=True, timed=False, outputs=True, inputs_after=True
            )
            reply = worker.ask(request, self.config.timeout_s).message
            if "error" in reply:
                raise_for(reply["error"])
            comparison = verify(chosen, reply)
            _refuse_mutation(reply, reference, result)
            if comparison.problem:
                raise Failed("runtime_error", comparison.problem)
            if result.max_abs_diff is None or (comparison.max_abs_diff or 0.0) >= result.max_abs_diff:
                result.max_abs_diff, result.worst = comparison.max_abs_diff, comparison.worst
            if comparison.passes_from_t is None:
                result.passes_from_t = None
                raise Failed("wrong_result", "values differ from eager's at every t")
            level = result.passes_from_t = max(level, comparison.passes_from_t)
        if level > score.STRICT_T:
            needed = f"a correct pass agrees at t = {score.STRICT_T}"
            result.status = "wrong_result"
            result.error = f"values agree with eager's only from t = {level}; {needed}"

    def _time(self, worker: Worker, reference: Reference, result: GraphResult, verify: Verify) -> None:
        """Time both sides, verifying outputs of calls among them; raises Failed and Refused."""
        assert result.passes_from_t is not None
        allowed = max(result.passes_from_t, score.STRICT_T)

        def verify_timed(chosen: int, reply: dict[str, Any]) -> None:
            if "error" in reply:
                raise TimedCallError(reply["error"])
            comparison = verify(chosen, reply)
            if comparison.problem or comparison.passes_from_t is None or comparison.passes_from_t > allowed:
                result.worst, result.passes_from_t = comparison.worst, None
                what = comparison.problem or "stale or wrong values"
                raise Failed("wrong_result", f"a timed call differs from eager: {what}")

        sets = len(reference.outputs)
        try:
            timing = measure(worker, self._baseline, sets, reference.mutated, verify_timed, self.config)
        except TimedCallError as failure:
            raise_for(failure.error)
            raise
        if timing.clock_disagrees:
            message = "its own times do not add up to the time that passed; leave the clock alone"
            raise Refused([Violation(rule="clock", file="", line=0, message=message)])
        fill_times(result, timing)


def check_device(device: str) -> None:
    """Raise UsageError if `device` is not `cpu`, `cuda` or `cuda:N`, or is not on this machine."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()) or (kind == "cpu" and number):
        raise UsageError(f"--device {device}: write cpu, cuda or cuda:N")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(number or 0) >= count:
            raise UsageError(f"--device {device}: this machine has {count} CUDA device(s); use --device cpu")


def uses_triton(candidate: Candidate) -> bool:
    """Whether a module of the candidate imports triton."""
    for name, text in candidate.files.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if any(module.split(".")[0] == "triton" for module in modules):
                return True
    return False


def _verifier(reference: Reference, outputs: Arena) -> Verify:
    """Compare a reply's outputs with eager's on the set; raises Refused for what the guard recorded."""

    def verify(chosen: int, reply: dict[str, Any]) -> Comparison:
        violations = [Violation.model_validate(item) for item in reply.get("violations", [])]
        if violations:
            raise Refused(violations)
        try:
            got = [outputs.read(item) for item in reply["outputs"]]
        except ValueError as error:
            return Comparison(str(error), None, None, None)
        return compare(reference.outputs[chosen], got)

    return verify


def _refuse_mutation(reply: dict[str, Any], reference: Reference, result: GraphResult) -> None:
    extra = sorted(set(reply["mutated"]) - set(reference.mutated))
    if extra:
        message = f"writes into input {extra[0]}, which eager leaves as it is; write to a tensor of your own"
        file = f"{result.applied[0]}.py"
        raise Refused([Violation(rule="input_mutation", file=file, line=0, message=message)])
