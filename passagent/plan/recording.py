"""Record a candidate. This runs in the throw-away process, which is shut in and has nothing to lose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from passagent.evaluator.candidate import Candidate
from passagent.evaluator.correctness.compare import metadata_problem
from passagent.evaluator.matching.diagnose import best_attempt
from passagent.evaluator.matching.loaded_passes import LoadedPass, PassLoadError, load_passes
from passagent.evaluator.matching.matcher import Match
from passagent.evaluator.matching.rewrite import Token, apply_passes, arguments_of, checked
from passagent.plan import facts as device
from passagent.plan import native, operators, refusal
from passagent.plan.arguments import Argument, ParameterArg, TupleArg
from passagent.plan.messages import (
    Failure,
    Missed,
    Recorded,
    Refusal,
    Request,
    Subgraph,
    TensorMeta,
    as_line,
    as_lines,
)
from passagent.plan.model import Call, Pass, PatternNode, Plan, Recording, SubgraphCalls
from passagent.plan.recording_session import Recorder, Session
from passagent.plan.refusal import NotCompiled, Refused
from passagent.tasks import graphio


def record_request(request: Request, root: Path) -> Recorded | Refusal:
    """The plans of a candidate, whose files are written under `root`; why there are none."""
    # with symbols for sizes that depend on data, in operators that no pass replaces
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    recorder = Recorder(root, request.device, request.library, device.Facts(dict(request.facts)), fake)
    try:
        install(recorder)
        passes = load_passes(Candidate(request.files), root)
        return _record(request, recorder, passes)
    except BaseException as error:
        return _told(recorder, error)


def install(recorder: Recorder) -> None:
    """Put the recorder between the candidate and all that it may call, in this process, for good."""
    native.install(recorder)
    operators.install(recorder)
    if recorder.device == "cuda":
        # Fake CUDA tensors in a process that sees no GPU: nobody is asked for one.
        torch._C._ensureCUDADeviceGuardSet()
        FakeTensorMode.avoid_device_init = property(lambda self: True)  # type: ignore[assignment,method-assign]
        fake_tensor.init_gpu_context = lambda *args: None  # type: ignore[assignment]
        if not torch.backends.cuda.is_built():
            follow_views_of_cuda()
        device.answer_for_torch(recorder.facts)
        for name in ("Stream", "Event", "CUDAGraph"):
            setattr(torch.cuda, name, lambda *args, **kwargs: recorder.refuse(refusal.OWN_STREAM))
    if "triton" in sys.modules:
        from passagent.plan import launches

        device.answer_for_triton(recorder.facts)
        launches.install(recorder)

    def data_ptr(tensor: torch.Tensor) -> int:
        return recorder.address(tensor)

    torch.Tensor.data_ptr = data_ptr  # type: ignore[assignment,method-assign]


def _record(request: Request, recorder: Recorder, passes: list[LoadedPass]) -> Recorded | Refusal:
    plans: list[list[Plan]] = [[] for _ in passes]
    subgraphs, missed, failed = [], list[Missed](), list[Failure]()
    recorded, refusals = list[tuple[str, list[_Recorded]]](), list[Refusal]()
    supposed = list[tuple[int, Plan]]()
    for subgraph in request.subgraphs:
        calls = list[_Recorded]()
        try:
            first = _twice(recorder, passes, subgraph)
            calls, missed, supposed = first.calls, missed + first.missed, supposed + first.supposed
        except PassLoadError:
            raise
        except (Refused, Exception) as error:
            failure = _told(recorder, error)
            if failure.status == "refused":
                refusals += [] if failure in refusals else [failure]
            else:
                failed.append(Failure(subgraph=subgraph.name, why=failure))
            recorder.refused = None
        recorded.append((subgraph.name, calls))
    if refusals:
        return refusals[0].model_copy(update={"others": tuple(refusals[1:]), "missed": tuple(missed)})
    facts = dict(sorted(recorder.facts.asked.items()))
    for name, calls in recorded:
        listed = []
        for call in calls:
            plan, earlier = call.plan.model_copy(update={"facts": facts}), plans[call.number]
            if plan not in earlier:
                earlier.append(plan)
            place = earlier.index(plan)
            listed.append(Call(number=call.number, plan=place, nodes=call.nodes, arguments=call.arguments))
        subgraphs.append(SubgraphCalls(name=name, calls=tuple(listed)))
    for number, unmatched in supposed:
        plan = unmatched.model_copy(update={"facts": facts})
        plans[number] += [] if plan in plans[number] else [plan]
    recording = Recording(
        device=request.device,
        passes=tuple(_pass(p, tuple(ps)) for p, ps in zip(passes, plans, strict=True)),
        subgraphs=tuple(subgraphs),
    )
    return Recorded(recording=recording, missed=tuple(missed), failed=tuple(failed))


def _twice(recorder: Recorder, passes: list[LoadedPass], subgraph: Subgraph) -> _Run:
    """The first of two runs over a subgraph, whose calls are the same."""
    first, second = (_Run(recorder, passes) for _ in range(2))
    first.over(subgraph)
    second.over(subgraph)
    if first.calls != second.calls:
        for one, other in zip(first.calls, second.calls, strict=False):
            if one != other:
                loaded = passes[one.number]
                code = getattr(loaded.replacement_func, "__code__", None)
                raise Refused(refusal.TWICE, loaded.file, code.co_firstlineno if code else 0)
        raise Refused(refusal.TWICE)
    return first


def _pass(loaded: LoadedPass, plans: tuple[Plan, ...]) -> Pass:
    nodes = graphio.dump_graph(loaded.pattern_graph)
    return Pass(
        name=loaded.name, file=loaded.file, pattern=tuple(PatternNode(**node) for node in nodes), plans=plans
    )


@dataclass
class _Recorded:
    number: int
    """The number of the pass."""
    nodes: tuple[str, ...]
    """The names of the nodes that the call replaces."""
    arguments: tuple[Argument, ...]
    plan: Plan


@dataclass
class _Run:
    """One time through a subgraph."""

    recorder: Recorder
    passes: list[LoadedPass]
    calls: list[_Recorded] = field(default_factory=list)
    """In the order in which the passes match."""
    missed: list[Missed] = field(default_factory=list)
    """Where nothing matches."""
    supposed: list[tuple[int, Plan]] = field(default_factory=list)
    """Where nothing at all does: the passes' numbers and plans as if their patterns' literals agreed."""
    _matched: list[tuple[int, tuple[Argument, ...]]] = field(default_factory=list)
    _recorded: dict[int, Plan] = field(default_factory=dict)

    def over(self, subgraph: Subgraph) -> None:
        """Replace the matches, run the graph on fake tensors, note the calls and what matches nowhere."""
        watched = [replace(p, replacement_args=self._seeing(n, p)) for n, p in enumerate(self.passes)]
        graph = graphio.load_graph(subgraph.nodes)
        rewritten = apply_passes(graph, watched, lambda p: checked(self._recording(p.replacement_func), p))
        suppositions = dict[str, str]()
        fake, broken = self.recorder.fake, self.recorder.broken
        broken.clear()
        with fake, torch.no_grad():
            eager, inputs = ([_input(subgraph.inputs[i]) for i in subgraph.order] for _ in range(2))
            returned, problem = rewritten.graph_module.forward(*inputs), None
            with suppress(Exception):  # where it needs values, outputs are compared when it runs
                problem = _difference(graphio.load_graph(subgraph.nodes).forward(*eager), returned)
            if not self._matched:
                suppositions = self._suppose(watched, rewritten.graph_module, inputs)
        if broken:
            raise NotCompiled("\n".join(broken))
        if problem is not None:
            raise TypeError(problem)
        for position, (number, arguments) in enumerate(self._matched):
            nodes = rewritten.places[position]
            self.calls.append(_Recorded(number, nodes, arguments, self._recorded[position]))
        for mismatch in rewritten.mismatches:
            mismatch.reason += suppositions.get(mismatch.pass_name, "")
            told: dict[str, Any] = {n: as_line(v) if isinstance(v, str) else v for n, v in mismatch}
            self.missed.append(Missed(subgraph=subgraph.name, **told))

    def _suppose(self, passes: list[LoadedPass], module: fx.GraphModule, inputs: list[Any]) -> dict[str, str]:
        """Record passes as if each matched what is most like its pattern, if all operators of it are there.

        What is wrong with their host code then, by their names.
        """
        interpreter, wrong = fx.Interpreter(module, garbage_collect_values=False), dict[str, str]()
        interpreter.run(*inputs)
        for loaded in passes:
            attempt, value_of = best_attempt(loaded.pattern_graph, module.graph), interpreter.env.__getitem__
            if attempt.bound is None:
                continue
            try:
                args = arguments_of(loaded, Match({}, attempt.bound, [], []))
                returned = self._recording(loaded.replacement_func)(*fx.map_arg(args, value_of))
                self.supposed.append((self._matched[-1][0], self._recorded[len(self._matched) - 1]))
                if problem := _difference(fx.map_arg(attempt.returned, value_of), returned):
                    raise TypeError(problem)
            except (Refused, Exception) as error:
                why, self.recorder.refused = _told(self.recorder, error), None
                place = f" ({why.file}:{why.line})" if why.file else ""
                wrong[loaded.name] = f"; beside that, were it to match: {why.status}: {why.message}{place}"
            self._matched.clear()
        return wrong

    def _seeing(self, number: int, loaded: LoadedPass) -> Callable[..., Any]:
        """The pass's replacement_args, of whose result is noted what the plan's caller needs."""
        session = Session(self.recorder)

        def noted(value: Any) -> Argument:
            if isinstance(value, Token):
                return ParameterArg(name=value.parameter)
            if isinstance(value, (tuple, list)):
                return TupleArg(items=tuple(map(noted, value)))
            return session.constant(value)

        def arguments(*args: Any) -> Any:
            result = loaded.replacement_args(*args)
            items = result if isinstance(result, (tuple, list)) else ()
            self._matched.append((number, tuple(map(noted, items))))
            return result

        return arguments

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement function for the match that was just made: its call becomes a plan."""
        position, recorder = len(self._matched) - 1, self.recorder

        def call(*args: Any) -> Any:
            session = Session(recorder)
            inputs = tuple(session.argument(value, session.given) for value in args)
            recorder.session = session
            try:
                with operators.Operators(session):
                    returned = function(*args)
                if recorder.refused is not None:
                    raise recorder.refused
                result = session.argument(returned, session.returned)
            finally:
                recorder.session = None
            self._recorded[position] = session.plan(inputs, result)
            return returned

        call.__name__ = getattr(function, "__name__", "replacement")
        return call


def _difference(eager: Any, returned: Any) -> str | None:
    """The first output whose dtype or shape is not eager's."""
    pairs = enumerate(zip(tree_leaves(eager), tree_leaves(returned), strict=False))
    tensors = [
        (n, a, b) for n, (a, b) in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    ]
    return next((problem for compared in tensors if (problem := metadata_problem(*compared))), None)


def _input(meta: TensorMeta | int | float) -> Any:
    if not isinstance(meta, TensorMeta):
        return meta
    dtype = getattr(torch, meta.dtype)
    return torch.empty_strided(meta.shape, meta.stride, dtype=dtype, device=meta.device)


def _told(recorder: Recorder, error: BaseException) -> Refusal:
    """The first refusal if there was one, else the error, at the candidate's line."""
    error = recorder.refused or error
    if isinstance(error, Refused):
        return Refusal(message=as_line(error.message), file=error.file[:300], line=error.line)
    if isinstance(error, PassLoadError):
        return Refusal(status="load_error", message=as_lines(str(error)))
    if isinstance(error, NotCompiled):
        return Refusal(status="compile_error", message=as_lines(str(error)))
    file, line = refusal.raised_place(recorder.root, error)
    message = as_line(f"{type(error).__name__}: {error}")
    if "not linked with support for cuda" in message:
        message = refusal.NO_DEVICE_GUARD
    return Refusal(status="runtime_error", message=message, file=file, line=line)


def follow_views_of_cuda() -> None:
    """Replace two methods for CUDA tensors, which a build of torch without CUDA refuses on fake ones.

    `contiguous` and indexing ask for the device's guard before any operator runs; their operators do not.
    """
    contiguous, getitem = torch.Tensor.contiguous, torch.Tensor.__getitem__

    def contiguous_(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        if not self.is_cuda:
            return contiguous(self, memory_format=memory_format)
        is_so = self.is_contiguous(memory_format=memory_format)
        return self if is_so else torch.ops.aten.clone(self, memory_format=memory_format)

    def getitem_(self: Any, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        is_basic = all(part is None or part is ... or type(part) in (int, slice) for part in parts)
        if not self.is_cuda or not is_basic:
            return getitem(self, index)
        with _disable_current_modes(), self.fake_mode:  # where the view of a tensor like this one lies
            shown = getitem(torch.empty_strided(self.shape, self.stride(), device="meta"), index)
        begin = self.storage_offset() + shown.storage_offset()
        return torch.ops.aten.as_strided(self, shown.shape, shown.stride(), begin)

    torch.Tensor.contiguous = contiguous_  # type: ignore[assignment,method-assign]
    torch.Tensor.__getitem__ = getitem_  # type: ignore[assignment,method-assign]
