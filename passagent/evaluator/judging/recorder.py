"""Have a candidate's host code recorded, and its plans checked and compiled, before a worker replays them.

The host code runs in a throw-away process without inputs, device or clock. Its answer is data. A kernel that
does not build fails the subgraphs that launch it; what no plan comes of refuses the candidate. Its files are
looked at first, as names and bytes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, MachineFault, UsageError
from passagent.evaluator import captures
from passagent.evaluator.candidate import PLAN
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.effort import CANDIDATE_S, Allowance
from passagent.evaluator.judging.plan_reading import library_violations
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.result import Candidate, Mismatch, Violation
from passagent.evaluator.runner.planned import Plans
from passagent.evaluator.sizes import FILES, plain
from passagent.evaluator.target import kind_of, target_of, uses_triton
from passagent.kernels import toolchain
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.plan import artefact, record
from passagent.plan.check import PlanError, Steps, check
from passagent.plan.compile import Built, PlanBuildError, compile_plan, told
from passagent.plan.facts import device_facts
from passagent.plan.messages import Missed, Recorded, Refusal
from passagent.plan.messages import Subgraph as RecordedSubgraph
from passagent.plan.model import Plan, Recording
from passagent.sandbox import faults, tools
from passagent.sandbox.child import ForkServer
from passagent.sandbox.limits import crowding
from passagent.tasks.reader import LibraryRule, Subgraph, library_rule

_PLACE = re.compile(r"^(\S+?(?::\d+:\d+|\(\d+\))): error:", re.MULTILINE)
NO_TRITON = (
    "Triton's kernels run on a GPU: write the kernel with passagent.kernels.cpp_kernel, or evaluate with "
    "--device cuda"
)
_Outcome = dict[str, Built] | PlanError | PlanBuildError


@dataclass(frozen=True)
class Prepared:
    """A candidate as a worker gets it, and the subgraphs that it cannot run."""

    plans: Plans
    failed: dict[str, Failed]
    """By the names of subgraphs: why host code fails on them, or their kernels do not build."""
    edited: list[str]
    """Files of plans that are not as they were recorded."""
    missed: list[Missed]
    """Where a pass matches nothing, and why."""
    allowance: Allowance
    """The remaining allowance."""

    def mismatches(self, subgraph: str) -> list[Mismatch]:
        """The passes that match nowhere in a subgraph, and why."""
        return [_mismatch(missed) for missed in self.missed if missed.subgraph == subgraph]

    def outline(self) -> list[str]:
        """Each plan in a few lines, and why there are no others."""
        recording = self.plans.recording
        called = {call.number for subgraph in recording.subgraphs for call in subgraph.calls}
        idle = {recorded.name for number, recorded in enumerate(recording.passes) if number not in called}
        reasons = {missed.pass_name: missed.words for missed in self.missed if missed.pass_name in idle}
        return [
            *(f"{name} matches nothing: {plain(reason)}" for name, reason in reasons.items()),
            *(f"{name}: {failure.status}: {failure.message}" for name, failure in self.failed.items()),
            *self.plans.outline(),
        ]


class Recorder:
    """Records candidates for one device.

    What is asked for next can be begun beside other work: a GPU's host has cores.
    """

    def __init__(self, config: EvaluatorConfig, lease: DeviceLease, server: ForkServer) -> None:
        """`server`: what forks a process for each recording."""
        self._config, self._lease, self._server = config, lease, server
        self._facts = device_facts(config.device)
        self._recording = threading.Lock()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="next")
        self._next: tuple[Candidate, list[Subgraph], Future[Prepared | None]] | None = None

    def close(self) -> None:
        """Wait for what was begun."""
        self._beside.shutdown(cancel_futures=True)

    def begin(self, candidate: Candidate, subgraphs: Sequence[Subgraph]) -> None:
        """Begin to prepare a candidate, in place of another one that was begun and not asked for."""

        def work() -> Prepared | None:
            if any(captures.without_dynamo(subgraph, self._config.device) is None for subgraph in subgraphs):
                return None  # the baseline's worker must capture it, which serves another candidate now
            return self._prepare(candidate, subgraphs, None)

        if self._next is not None:
            self._next[2].cancel()
        self._next = candidate, list(subgraphs), self._beside.submit(work)

    def prepare(self, candidate: Candidate, subgraphs: Sequence[Subgraph], baseline: Baseline) -> Prepared:
        """The candidate's plans on `subgraphs`, ready to run.

        Raises Refused and Failed where no plan comes of it, InfrastructureError.
        """
        if self._next is not None and self._next[:2] == (candidate, list(subgraphs)):
            (_, _, begun), self._next = self._next, None
            with suppress(InfrastructureError):  # the machine's: once more
                if not begun.cancel() and (prepared := begun.result()) is not None:  # not behind another one
                    return prepared
        return self._prepare(candidate, subgraphs, baseline)

    def _prepare(
        self, candidate: Candidate, subgraphs: Sequence[Subgraph], baseline: Baseline | None
    ) -> Prepared:
        violations = [] if candidate.is_plans else check_files(candidate.files)
        if violations:
            raise Refused(violations)
        device = kind_of(self._config.device)
        if device == "cpu" and uses_triton(candidate):
            raise Failed("compile_error", NO_TRITON)
        graphs = [self._seen(subgraph, baseline, device) for subgraph in subgraphs]
        rule = library_rule(self._config.library, subgraphs)
        edited = list[str]()
        allowance = Allowance(CANDIDATE_S * crowding())
        if candidate.is_plans:
            recorded, edited = artefact.read(candidate.files)
            try:
                record.check_fits(recorded, graphs, device)
            except PlanError as error:
                raise UsageError(f"{PLAN}: {error}; evaluate the pass itself here") from error
            answer = Recorded(recording=recorded, missed=())
        else:
            answer = self._record(candidate, graphs, device, rule, allowance)
            recorded = answer.recording
        built, failed = dict[str, Built](), {f.subgraph: _failed(f.why) for f in answer.failed}
        refused = library_violations(subgraphs, recorded, rule)
        unbuilt, texts = set[tuple[int, int]](), list[str]()
        for (number, place), outcome in self._built(recorded, allowance):
            file = recorded.passes[number].file
            if isinstance(outcome, dict):
                built |= outcome
            elif isinstance(outcome, PlanError):
                refused.append(Violation(rule="plan", file=file, line=0, message=plain(str(outcome))))
            else:
                unbuilt.add((number, place))
                for kernel, why in outcome.failures:
                    within = why.line if isinstance(why, KernelRefused) else 1
                    source, line = _place_of(kernel.text, within, candidate.files) or (file, 0)
                    if isinstance(why, KernelRefused):
                        message = plain(f"{kernel.entry}: {why} (line {within} of the kernel's source)")
                        refused.append(Violation(rule=why.rule, file=source, line=line, message=message))
                    else:
                        where = f"{source}:{line}" if line else source
                        texts.append(plain(f"{told(kernel.entry, why)} ({where})"))
        compiler_words = "\n".join(_each_once(texts))
        unmatched = _unmatched(answer, compiler_words)
        if refused:
            raise Refused(list({v.model_dump_json(): v for v in refused}.values()), unmatched)
        failed |= unmatched
        for subgraph in recorded.subgraphs:
            if any((call.number, call.plan) in unbuilt for call in subgraph.calls):
                failed[subgraph.name] = Failed("compile_error", compiler_words)
        return Prepared(Plans(recorded, built), failed, edited, list(answer.missed), allowance)

    def _built(
        self, recording: Recording, allowance: Allowance
    ) -> Iterator[tuple[tuple[int, int], _Outcome]]:
        """For each plan, by the numbers of its pass and in it, its built kernels or why there are none."""
        arch = None if self._config.device == "cpu" else "sm_{major}{minor}".format(**self._facts)
        target, steps = target_of(self._config), Steps()
        plans = {(n, p): plan for n, r in enumerate(recording.passes) for p, plan in enumerate(r.plans)}

        def build(plan: Plan) -> _Outcome:
            tools.END.set(end)
            try:
                check(plan, steps)
                for kernel in plan.kernels.values():
                    if why := target.refuses(kernel):
                        raise PlanError(f"launches {kernel.entry}: {why}")
                return compile_plan(plan, arch)
            except PlanError as error:
                return error
            except PlanBuildError as error:
                if faults.speaks_of_places(str(error)):  # a source may say so, too
                    faults.check_places()
                return error

        with self._lease.host(), faults.named("building a kernel"):
            if any(kernel.kind == "cpp" for plan in plans.values() for kernel in plan.kernels.values()):
                _prepare_headers()
            end = time.monotonic() + allowance.left_s
            with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="build") as pool:
                outcomes = list(pool.map(build, plans.values()))
            allowance.left_s = end - time.monotonic()
        yield from zip(plans, outcomes, strict=True)

    def _record(
        self,
        candidate: Candidate,
        subgraphs: list[RecordedSubgraph],
        device: str,
        rule: LibraryRule,
        allowance: Allowance,
    ) -> Recorded:
        with self._recording, self._lease.host():
            begun = time.monotonic()
            answer = record.record(self._server, candidate, subgraphs, device, self._facts, rule)
            allowance.left_s -= time.monotonic() - begun
        if isinstance(answer, Recorded):
            return answer
        if answer.status != "refused":
            raise _failed(answer)
        violations = [
            Violation(rule="recording", file=why.file, line=why.line, message=plain(why.message))
            for why in (answer, *answer.others)
        ]
        raise Refused(violations, _unmatched(answer))

    def _seen(self, subgraph: Subgraph, baseline: Baseline | None, device: str) -> RecordedSubgraph:
        """A subgraph as the recording process sees it. The baseline's worker captures what Dynamo must."""
        graph = captures.without_dynamo(subgraph, self._config.device)
        if graph is None:
            assert baseline is not None
            graph = baseline.capture(subgraph)
        return record.seen(subgraph, graph, device)


def _prepare_headers() -> None:
    """Make what every C++ kernel includes. Raises MachineFault: no text of a candidate's is in it."""
    try:
        toolchain.prelude()
    except KernelBuildError as error:
        faults.check_places()
        why = " ".join(str(error).split())[:300]
        raise MachineFault(f"C++ kernels cannot be built on this machine: {why}") from error


def _unmatched(answer: Recorded | Refusal, more: str = "") -> dict[str, Failed]:
    """By their names, the subgraphs that no pass matches, and why; `more`: what does not build."""
    calls = answer.recording.subgraphs if isinstance(answer, Recorded) else ()
    called = {graph.name for graph in calls if graph.calls} | {
        failure.subgraph for failure in getattr(answer, "failed", ())
    }
    missed: dict[str, list[Mismatch]] = {}
    for mismatch in answer.missed:
        if mismatch.subgraph not in called:
            missed.setdefault(mismatch.subgraph, []).append(_mismatch(mismatch))
    message = "\n".join(part for part in ("no pass matched this graph", more) if part)
    return {name: Failed("mismatch", message, mismatches) for name, mismatches in missed.items()}


def _mismatch(missed: Missed) -> Mismatch:
    fields = missed.model_dump(exclude={"subgraph"})
    return Mismatch(**{name: plain(text) if isinstance(text, str) else text for name, text in fields.items()})


def _each_once(texts: list[str]) -> list[str]:
    """Compilers' texts, without those about the same places for another dtype."""
    places_of = dict[str, set[str]]()
    for text in sorted(dict.fromkeys(texts), key=lambda text: -len(_PLACE.findall(text))):
        places = set(_PLACE.findall(text))
        if not places or not any(places <= others for others in places_of.values()):
            places_of[text] = places
    return list(places_of)


def _place_of(text: str, line: int, files: dict[str, str]) -> tuple[str, int] | None:
    """The file and line that a line of a kernel's source stands in; None where it is put together.

    A part between empty lines is enough for a line beyond the first: Triton's text is made of functions.
    """
    parts, begin = [(text, 1)], 1
    for part in text.split("\n\n\n") if line > 1 else ():
        if begin <= line <= begin + part.count("\n"):
            parts.append((part, begin))
        begin += part.count("\n") + 3
    for part, begin in parts:
        for name, content in files.items():
            start = content.find(part) if part.strip() else -1
            if start >= 0:
                return name, content.count("\n", 0, start) + 1 + line - begin
    return None


def _failed(why: Refusal) -> Failed:
    """A failure of the host code, with its place."""
    place = f" ({why.file}:{why.line})" if why.file else ""
    return Failed(why.status, plain(why.message) + place)


_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*(?:[A-Za-z0-9_-]+\.py|[A-Za-z0-9_.-]+\.(?:json|md|txt))")


def check_files(files: dict[str, str]) -> list[Violation]:
    """Names that stay inside the pass directory and are different modules, and a bounded size."""
    size = sum(len(part.encode(errors="surrogatepass")) for file in files.items() for part in file)
    most_bytes, most_files = FILES["bytes of files and names"], FILES["files"]
    if size > most_bytes or len(files) > most_files:
        message = (
            f"the candidate is {len(files)} files of {size} bytes; write at most {most_files} "
            f"files of {most_bytes} bytes together"
        )
        return [Violation(rule="too_large", file=min(files)[:200], line=1, message=message)]
    message = "the file's name is not of letters, digits and `_`; name it like a module, inside the directory"
    same = "another file is the same module, and only one of the two can be imported; use another name"
    wrong = {name: message for name in files if not _NAME.fullmatch(name)}
    modules = {name: _module(name) for name in files if name.endswith(".py") and name not in wrong}
    counts = Counter(modules.values())
    wrong |= {name: same for name, module in modules.items() if counts[module] > 1}
    return [
        Violation(rule="file_name", file=name[:200], line=1, message=wrong[name]) for name in sorted(wrong)
    ]


def _module(name: str) -> str:
    """The module that a file is, below the candidate's package: empty for the package's own `__init__.py`."""
    folder, _, last = name.removesuffix(".py").rpartition("/")
    return ".".join(part for part in (*folder.split("/"), last if last != "__init__" else "") if part)
