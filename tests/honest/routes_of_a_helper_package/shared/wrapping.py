import functools

import torch


def ensure_contiguous(fn):
    """Calls `fn` with contiguous tensors."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        args = [a.contiguous() if isinstance(a, torch.Tensor) else a for a in args]
        return fn(*args, **kwargs)

    return wrapper
