"""Operators that are in the graph that Dynamo captures as a forward's text has them.

tests/test_tasks_straight.py holds each of them against Dynamo. A method's name begins with a dot.
"""

_TORCH = """
    abs acos adaptive_avg_pool1d add addcmul addmm all amax amin any arange argmax argmin as_tensor asin
    atan atan2 avg_pool1d baddbmm bitwise_and bitwise_not bitwise_or bmm broadcast_to cat cdist ceil celu
    channel_shuffle clamp clip clone concat conv1d conv2d conv3d conv_transpose1d conv_transpose2d cos
    cosh count_nonzero cumprod cumsum deg2rad detach diagonal div divide dot embedding empty_like eq erf
    erfc exp exp2 expm1 eye flatten flip floor floor_divide fmax fmin fmod frac full full_like gather ge
    group_norm gt hardshrink hypot index_select isclose isfinite isinf isnan layer_norm le lerp linspace
    log log1p log2 log_softmax logical_and logical_not logical_or logical_xor logsumexp lt masked_fill
    matmul maximum mean minimum mm movedim mul multiply mv nan_to_num narrow ne neg ones ones_like outer
    permute pixel_shuffle positive pow prelu prod rand reciprocal relu remainder reshape rms_norm roll
    rot90 round rsqrt rsub select selu sgn sigmoid sign sin sinh softmax sqrt square squeeze stack std sub
    subtract sum swapaxes t take tan tanh tensor tile transpose tril triu true_divide trunc unflatten
    unsqueeze var where zeros zeros_like
"""
_FUNCTIONAL = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d
    batch_norm celu channel_shuffle conv1d conv2d conv3d cosine_similarity dropout dropout1d dropout2d
    dropout3d elu embedding fold gelu glu group_norm hardshrink hardsigmoid hardswish hardtanh
    instance_norm interpolate layer_norm leaky_relu linear local_response_norm log_softmax logsigmoid
    max_pool1d max_pool2d max_pool3d mish mse_loss normalize pairwise_distance pixel_shuffle
    pixel_unshuffle prelu relu relu6 scaled_dot_product_attention selu sigmoid silu softmax softmin
    softplus softshrink softsign tanh tanhshrink unfold
"""
_NN = """
    avg_pool2d avg_pool3d gelu hardsigmoid linear log_sigmoid pad scaled_dot_product_attention silu
    softplus softshrink
"""
_METHODS = """
    __add__ __eq__ __ge__ __gt__ __iadd__ __imul__ __le__ __lt__ __mul__ __ne__ __pow__ __radd__ __rmul__
    __rsub__ __sub__ __truediv__ abs abs_ add add_ addcmul addmm all amax amin any argmax argmin atan2
    bfloat16 bmm bool broadcast_to byte ceil clamp clamp_ clamp_max clamp_min clamp_min_ clip clone
    contiguous copy_ cos count_nonzero cumprod cumsum detach diagonal div div_ dot double eq erf exp exp_
    expand expand_as expm1 fill_ flatten flip float floor fmod gather ge gt half index_add index_fill
    index_select int isinf isnan le lerp log log1p log_softmax logical_and logical_not logical_or
    logsumexp long lt masked_fill masked_fill_ matmul maximum mean minimum mm movedim mul mul_ mv
    nan_to_num narrow ne neg neg_ new_full new_ones new_zeros norm permute pow pow_ prod ravel reciprocal
    relu relu_ remainder repeat reshape reshape_as roll round rsqrt rsqrt_ scatter select sigmoid sigmoid_
    sign sin softmax sqrt sqrt_ square squeeze std sub sub_ sum swapaxes swapdims t tan tanh tanh_ tile to
    transpose tril triu true_divide trunc type type_as unflatten unfold unsqueeze var view view_as where
    zero_
"""
OPERATORS = frozenset(
    [f"torch.{name}" for name in _TORCH.split()]
    + [f"torch.nn.functional.{name}" for name in _FUNCTIONAL.split()]
    + [f"torch._C._nn.{name}" for name in _NN.split()]
    + [f".{name}" for name in _METHODS.split()]
    + ["torch.functional.einsum", "torch.functional.norm"]
)
"""What gives one tensor."""
_SPLITTING = """
    torch.chunk torch.functional.split torch.sort torch.tensor_split torch.topk torch.unbind
    .chunk .sort .split .tensor_split .topk .unbind
"""
SPLITTING = frozenset(_SPLITTING.split())
"""What gives several tensors."""
EXTREMES = frozenset({"torch.max", "torch.min", ".max", ".min"})
"""What gives one tensor, but along a dimension two."""
_OF_NUMBERS = "arange eye full linspace ones rand tensor zeros"
OF_NUMBERS = frozenset(f"torch.{name}" for name in _OF_NUMBERS.split())
"""What Dynamo treats otherwise where a tensor stands for a number."""
