"""An attention with a mask, as the attention that torch's fused kernels take.

torch computes attention by matrix products in float32 and a softmax where the keys of a mask do not lie side
by side in memory. That is so for a bias that was permuted, and for a mask that is broadcast over the keys.
And a mask that holds nothing, or only what `is_causal` says, costs its reading: compiled models of
transformers build one where they are given none.

Right if: the mask is laid out anew, with the same values, or is a bool mask that the graph computes of no
input, so that its values are known here: all true, or true up to the diagonal of equally many queries and
keys. Nothing is dropped out.

Pays on a GPU in float16 and bfloat16, where the fused kernels are: several times for an attention whose mask
kept it from them, and for a causal one without its mask. A mask with its keys side by side is left alone.
"""

import torch


def pattern(query, key, value, mask, dropout, is_causal, scale, enable_gqa):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def applies(mask, dropout, known=None, **_):
    if not isinstance(mask, torch.Tensor) or dropout != 0:
        return False
    meaning = _meaning(known["mask"]) if known and "mask" in known else None
    if meaning is None and (mask.shape[-1] == 1 or mask.stride(-1) == 1):
        return False
    return {"meaning": meaning}


def replacement(query, key, value, mask, dropout, is_causal, scale, enable_gqa, meaning=None):
    mask = _with_keys_side_by_side(mask) if meaning is None else None
    is_causal = is_causal or meaning == "causal"
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _meaning(mask):
    """Return "all" for a mask of known values that hides nothing, "causal", or None for another one."""
    if mask.dtype != torch.bool or mask.dim() < 2:
        return None
    if mask.all():
        return "all"
    queries, keys = mask.shape[-2:]
    lower = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return "causal" if queries == keys and torch.equal(mask, lower.expand_as(mask)) else None


def _with_keys_side_by_side(mask):
    """Copy the mask, a dimension over which it is broadcast once; the last one is written out."""
    rows = mask
    for dim, step in enumerate(mask.stride()[:-1]):
        rows = rows.narrow(dim, 0, 1) if step == 0 and mask.shape[dim] > 1 else rows
    return rows.contiguous().expand(mask.shape)
