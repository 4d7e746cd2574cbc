"""What computes among torch's operators, and what only allocates, views or copies."""

import textwrap

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from passagent.plan.library import computes

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Computing(TorchDispatchMode):
    """Notes what computes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found += [reason] if (reason := computes(func, args, kwargs or {})) else []
        return func(*args, **(kwargs or {}))


def found(function, *args):
    """What computes in a call."""
    with Computing() as mode:
        function(*args)
    return mode.found


def function_of(body):
    names = {"torch": torch}
    exec(f"def f(x, y):\n{textwrap.indent(body, '    ')}", names)
    return names["f"]


ALLOWED = [
    "return torch.empty_like(x), torch.empty_like(x, memory_format=torch.contiguous_format)",
    "out = torch.empty((2, 3), dtype=torch.float16, device=x.device)\nout.fill_(1.0)\nreturn out.zero_()",
    "return torch.zeros(4), torch.ones(2), torch.full((2, 2), 7), torch.ones_like(x), torch.full_like(x, 2)",
    "return torch.tensor([1.0]), torch.tensor(3)",
    "return x.new_full((2,), 3), x.new_zeros(3), x.new_empty((2, 2)), torch.zeros_like(x)",
    "return x.new_ones(2), x.new_empty_strided((2, 2), (1, 2)), torch.empty_permuted((2, 3), (1, 0))",
    "return x.view(6, 4).t().transpose(0, 1).unsqueeze(0).squeeze(0).expand(6, 4).permute(1, 0)",
    "return x[0], x[..., 1:3], x[:, None], x.select(1, 0), x.flatten(), x.unflatten(0, (1, 2))",
    "return (*x.split(1, 0), *x.chunk(2, -1), *x.unbind(1)), x.unfold(2, 2, 1), x.detach(), x.squeeze()",
    "return x.movedim(0, 1), x.swapaxes(0, 1), x.narrow(2, 1, 2), x.view_as(y), x.expand_as(y), x.ravel()",
    "return torch.broadcast_to(x, (5, 2, 3, 4)), torch.broadcast_tensors(x, x[:1])",
    "return x.broadcast_to(5, 2, 3, 4), x.diagonal(0, 1, 2), x.adjoint()",
    "return x.moveaxis(0, 1), x.swapdims(0, 1), x.reshape_as(y), x.tensor_split(2)",
    "return x.split_with_sizes([1, 1])",
    "return torch.as_strided(x, (2,), (1,)), torch.chunk(x, 2), torch.clone(x), torch.flatten(x)",
    "return torch.movedim(x, 0, 1), torch.narrow(x, 0, 0, 1), torch.permute(x, (2, 1, 0)), torch.t(x[0])",
    "return torch.reshape(x, (-1,)), torch.select(x, 0, 0), torch.split(x, 1), torch.squeeze(x)",
    "return torch.swapaxes(x, 0, 1), torch.transpose(x, 0, 1), torch.unbind(x), torch.unsqueeze(x, 0)",
    "return x.new_full((2,), 1.0), x.new_tensor([1.0, 2.0])",
    "return x.permute(2, 1, 0).contiguous(), x.permute(2, 1, 0).reshape(-1), x.clone(), x.to(x.dtype), x.mT",
    "return x.contiguous(), x.cpu(), x.float(), x.to(x.device), x.to('cpu', copy=True)",
    "return x.contiguous(memory_format=torch.contiguous_format), x[:, :, None].contiguous()",
    "x.copy_(x.clone())\nreturn x",
    "out = torch.empty(2, 3, 4)\nout.copy_(x)\nreturn out.data",
    "return x.view(torch.int32), x.as_strided((2, 2), (1, 2)), x.is_contiguous(), x.stride(), x.data_ptr()",
    "n = x.numel() * 2 + x.shape[0]\nreturn torch.empty(n)[:0], torch.empty_strided((2, 2), (1, 2))",
    "return x.dtype.itemsize, x.device, x.dim(), x.size(0), x.storage_offset(), x.is_complex(), len(x)",
    "return x.is_floating_point(), x.element_size(), x.nbytes, x.layout, x.untyped_storage().nbytes()",
    "return torch.broadcast_shapes(x.shape, y.shape), torch.promote_types(x.dtype, torch.int64)",
    "return torch.result_type(x, 2.0), torch.finfo(x.dtype).max, x.is_same_size(y), torch.is_tensor(x)",
    "return torch.result_type(x, y), torch.result_type(2, x), x.is_set_to(y), x.get_device(), x.is_neg()",
    "return x.dense_dim(), x.is_conj(), x.is_inference(), x.is_leaf, x.retains_grad, x._version, x.output_nr",
    "with torch.no_grad():\n    return torch.view_as_real(torch.empty(3, dtype=torch.complex64))",
    "return torch.view_as_complex(x.view(2, 3, 2, 2))",
]
COMPUTING = [
    "return x + y",
    "return x @ y.transpose(1, 2)",
    "return torch.einsum('abc,abc->ab', x, y)",
    "return torch.relu(x)",
    "return x.exp_()",
    "x += y\nreturn x",
    "x[0] += 1\nreturn x",
    "return torch.ops.aten.mul.Tensor(x, y)",
    "return sum([x, y])",
    "return x.sum()",
    "return x.amax(0), x.argmax()",
    "return x.sort()[0]",
    "return x.to(torch.float64)",
    "return x.flatten()[0].item()",
    "return 1 if x[0, 0, 0] else 2",
    "return float(x[0, 0, 0])",
    "return x.equal(y)",
    "return x == y",
    "return x[x > 0]",
    "return x[torch.empty(2, dtype=torch.int64).zero_()]",
    "x[torch.empty(2, dtype=torch.int64).zero_()] = 0\nreturn x",
    "return x.gather(0, torch.zeros(1, 3, 4, dtype=torch.int64))",
    "return torch.where(torch.ones(2, 3, 4, dtype=torch.bool), x, y)",
    "return torch.nonzero(x)",
    "return torch.cat([x, y])",
    "return torch.flip(x, (0,))",
    "return x.repeat(2, 1, 1)",
    "return torch.nn.functional.pad(x, (1, 1))",
    "out = torch.empty_like(x)\nout[:, 0] = x[:, 1]\nreturn out",
    "out = torch.empty(4, 3, 4)\nout[:2].copy_(x)\nreturn out",
    "out = torch.empty(2, 3, 4, dtype=torch.float64)\nout.copy_(x)\nreturn out",
    "out = torch.empty(2, 3, 4)\nout.copy_(x[0])\nreturn out",
    "return torch.full((2,), x[0, 0, 0])",
    "return torch.empty(2).fill_(x[0, 0, 0])",
    "return torch.tensor(x, dtype=torch.float64)",
    "return x.new_tensor(x, dtype=torch.float16)",
    "return torch.arange(4)",
    "return torch.rand(4)",
    "return torch.empty(4).uniform_()",
    "return torch.nn.functional.softmax(x, -1)",
    "return torch.nn.functional.scaled_dot_product_attention(x, y, y)",
    "return torch.add(x, y, out=torch.empty_like(x))",
    "return torch.fft.fft(x)",
    "return torch.linalg.inv(torch.zeros(2, 2) .fill_(1))",
    "return torch.conj(torch.view_as_complex(x.view(2, 3, 2, 2)))",
    "return torch._neg_view(x)",
    "x.resize_(3)\nreturn x",
    "x.set_(y)\nreturn x",
    "return torch._foreach_add([x], [y])",
    "torch._foreach_copy_([x[0]], [y[0]])\nreturn x",
]


@pytest.mark.parametrize("body", ALLOWED)
def test_allocation_views_and_metadata_do_not_compute(body):
    assert found(function_of(body), X.clone(), X.clone()) == []


@pytest.mark.parametrize("body", COMPUTING)
def test_a_computing_operator_is_told(body):
    with Computing() as mode:
        try:
            function_of(body)(X.clone(), X.clone())
        except RuntimeError:
            assert "linalg" in body  # a singular matrix: that it was called is what counts
    assert mode.found
    assert all(one.startswith("aten.") for one in mode.found)


@st.composite
def steps(draw):
    """Allowed steps that are valid for whatever shape they meet."""

    def dim(x, k):
        return k % x.dim()

    k, size = draw(st.integers(0, 5)), draw(st.integers(1, 3))
    return draw(
        st.sampled_from(
            [
                lambda x: x.transpose(0, dim(x, k)) if x.dim() else x,
                lambda x: x.permute(tuple(range(x.dim()))[::-1]),
                lambda x: x.unsqueeze(k % (x.dim() + 1)) if x.dim() < 6 else x,
                lambda x: x.squeeze(dim(x, k)) if x.dim() else x,
                lambda x: x.select(dim(x, k), 0) if x.dim() and x.shape[dim(x, k)] else x,
                lambda x: x.narrow(dim(x, k), 0, min(size, x.shape[dim(x, k)])) if x.dim() else x,
                lambda x: x[..., :size] if x.dim() else x,
                lambda x: x[None] if x.dim() < 6 else x,
                lambda x: x.reshape(-1),
                lambda x: x.flatten(),
                lambda x: x.contiguous(),
                lambda x: x.clone(memory_format=torch.contiguous_format),
                lambda x: x.expand(size, *x.shape) if x.dim() < 5 else x,
                lambda x: x.split(max(1, size), 0)[0] if x.dim() else x,
                lambda x: x.chunk(size, 0)[0] if x.dim() else x,
                lambda x: x.unbind(0)[0] if x.dim() and x.shape[0] else x,
                lambda x: x.movedim(0, -1) if x.dim() else x,
                torch.empty_like,
                torch.zeros_like,
                lambda x: torch.full(x.shape, 2.0, dtype=x.dtype),
                lambda x: x.new_empty(x.shape).copy_(x),
                lambda x: x.as_strided(x.size(), x.stride()),
                lambda x: x.detach(),
                lambda x: x.to(x.dtype),
            ]
        )
    )


def run(x, chain):
    for step in chain:
        x = step(x)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.lists(steps(), max_size=12),
    st.integers(0, 12),
)
def test_no_chain_of_views_and_allocations_computes(shape, dtype, chain, at):
    x = torch.ones(shape, dtype=dtype)
    assert found(run, x, chain) == []
    assert found(run, x, [*chain[:at], lambda x: x == 1, *chain[at:]]) == ["aten.eq"]
