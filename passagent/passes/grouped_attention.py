"""An attention whose keys and values were repeated for groups of query heads, without the repeating.

Decoders have fewer heads of keys and values than of queries, and models write out a copy for each query head.
The operator takes them as they are (`enable_gqa`), and its fused kernels read each head once.

Right if: each head is repeated as often as the next, one copy beside the other, for keys and values alike.

Pays on a GPU with the kernels of cuDNN (Hopper), and with the flash kernel where there is no mask. Where no
fused kernel takes both groups and a mask it loses.
"""

import torch


def pattern(
    query, key, value, key_sizes, key_shape, value_sizes, value_shape, mask, dropout, is_causal, scale
):
    keys = key[:, :, None, :, :].expand(key_sizes).reshape(key_shape)
    values = value[:, :, None, :, :].expand(value_sizes).reshape(value_shape)
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, mask, dropout, is_causal, scale=scale
    )


def pattern_behind_another_pass(
    query, key, value, key_sizes, key_shape, value_sizes, value_shape, mask, dropout, is_causal, scale
):
    keys = key[:, :, None, :, :].expand(key_sizes).reshape(key_shape)
    values = value[:, :, None, :, :].expand(value_sizes).reshape(value_shape)
    return torch.ops.aten.scaled_dot_product_attention.default(
        query, keys, values, mask, dropout, is_causal, scale=scale
    )


def applies(query, key, value, key_sizes, key_shape, value_sizes, value_shape, **_):
    return all(
        x.dim() == 4 and tuple(shape) == (x.shape[0], query.shape[1], *x.shape[2:])
        for x, shape in ((key, key_shape), (value, value_shape))
    ) and (key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0)


def replacement(query, key, value, mask, dropout, is_causal, scale, **_):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=True
    )
