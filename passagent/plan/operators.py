"""The operators of torch that a call runs, as steps of its plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from passagent.plan import library, refusal
from passagent.plan.recording_session import Recorder, Session

_READING = {"_local_scalar_dense": ".item(), or a tensor as a condition,", "equal": "torch.equal"}
_WRITING = {"zero_", "fill_", "copy_", "detach_", "record_stream"}


_KEYS = {"cpu": "CPU", "cuda": "CUDA"}
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_ANY_DEVICE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "")


def install(recorder: Recorder) -> None:
    """Note the Python functions that a candidate registers as operators: a call of one runs the function.

    An attention is one operator: torch would choose its form by the GPU, and this process sees none.
    """
    aten = torch.library.Library("aten", "IMPL")
    aten.impl(_ATTENTION._opname, _attention, _KEYS[recorder.device])
    recorder.libraries.append(aten)
    original = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        if dispatch_key in (_KEYS[recorder.device], *_ANY_DEVICE) and isinstance(op_name, str):
            recorder.own_operators[f"{self.ns}::{op_name.rpartition('::')[2]}"] = fn
        return original(self, op_name, fn, dispatch_key, **options)

    torch.library.Library.impl = impl  # type: ignore[method-assign]


def _attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return what an attention returns, laid out as the query, which is how its fused forms have it."""
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(query, *args, **kwargs)[0]
    return torch.empty_like(query).copy_(result) if result.shape == query.shape else result


class Operators(TorchDispatchMode):
    """Lies above the fake tensors' mode while a call runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        session, kwargs = self._session, kwargs or {}
        name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else str(func)
        if name in _READING:
            session.refuse(refusal.READS_A_VALUE.format(operator=_READING[name]))
        if name.startswith("_record_function"):
            return func(*args, **kwargs)  # a label for a profiler
        operator = session.recorder.own_operators.get(str(getattr(func, "_schema", func)).partition("(")[0])
        if operator is not None:
            with self:
                return operator(*args, **kwargs)
        reason = library.computes(func, args, kwargs)
        if reason is not None and (name != "copy_" or session.recorder.library == "none"):
            return self._compute(func, args, kwargs, reason)
        if reason is not None and (args[0].dtype, args[0].shape) != (args[1].dtype, args[1].shape):
            session.refuse(refusal.CONVERTS)
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable and name not in _WRITING:
            session.refuse(refusal.COMPUTES.format(operator=f"aten.{name} (into a tensor)"))
        args, kwargs = tree_map(session.stand_in, (args, kwargs))
        out = func(*args, **kwargs)
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        for result in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(result, torch.Tensor):
                self._note(name, result, first, args, kwargs)
        return out

    def _compute(self, func: Any, args: Any, kwargs: Any, shown: str) -> Any:
        """Have the operator called at each call of the plan, where the rule allows it."""
        session = self._session
        name = library.name_of(func) if isinstance(func, torch._ops.OpOverload) else str(func)
        if not library.is_allowed(name, session.recorder.library):
            session.refuse(refusal.COMPUTES.format(operator=shown))
        reason = library.refusal(func, lambda at, name: args[at] if at < len(args) else kwargs.get(name))
        if reason is not None:
            session.refuse(reason)
        args, kwargs = tree_map(session.stand_in, (args, kwargs))
        out = (_attention if func is _ATTENTION else func)(*args, **kwargs)
        session.compute(name, args, kwargs, out)
        return out

    def _note(
        self, name: str, result: torch.Tensor, first: torch.Tensor | None, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        session = self._session
        if name in ("zero_", "fill_") and first is not None:
            session.fill(session.use(first).value, 0 if name == "zero_" else (*args[1:], *kwargs.values())[0])
        elif name == "copy_" and first is not None:
            session.copy(session.use(first).value, args[1])
        elif name in ("lift_fresh", "lift_fresh_copy") and first is not None:
            session.keep_constant(result, session.slot(first))
        elif session.view(result, first):
            pass
        elif name in library.EMPTY:
            session.allocate(result)
        elif name in library.FILLED:
            session.fill(session.allocate(result), library.FILLED[name])
        elif name in library.FULL:
            at = library.FULL[name]
            session.fill(session.allocate(result), args[at] if len(args) > at else kwargs["fill_value"])
        elif name in ("clone", "_to_copy") and first is not None:
            if first.device != result.device and session.slot(first).kind == "constant":
                session.keep_constant(result, session.slot(first))
            else:
                session.copy(session.allocate(result), first)
        else:
            session.refuse(refusal.NO_STEP.format(operator=name))
