"""`linear` in float32 on the CPU, with the activation behind it, as one C++ kernel.

Left to the library in any other place. A task that is one such product is worth a kernel: the library writes
the bias first and reads it back, and an activation behind it walks memory once more. Weights keep the model's
layout: a block of 32 rows is turned into columns in the cache, then multiplied with 8 rows at a time.
"""

from __future__ import annotations

import itertools
import re

import torch
from torch import fx

from passagent.expert.choices import Plan
from passagent.expert.graph import example, op_name, operators
from passagent.expert.lower.region import Region, Types, lower_region
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.read.fusible_regions import make_region
from passagent.expert.schedule.layouts import stored
from passagent.expert.write import cpp_text
from passagent.expert.write.routes import Variant
from passagent.expert.write.writer import Kernel

BEHIND = {"gelu", "relu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "hardswish", "dropout", "mish"}
"""Operators of one tensor, element by element, that are computed with the product."""
_SINGLE = Types(frozenset())
_SOURCE = """\
#pragma GCC optimize("fp-contract=fast")
typedef float lanes __attribute__((vector_size(64)));
typedef float loose __attribute__((vector_size(64), aligned(4)));
typedef int32_t places __attribute__((vector_size(64)));
constexpr int LANES = 16, WIDE = 32, ROWS = 8, DEEP = 256, TALL = 128;
{epilogue}
// 16 rows of 16 become columns: halves change places, then quarters, and so on.
template <int STEP> static inline void turn(lanes* rows) {{
  places low, high;
  for (int i = 0; i < LANES; ++i) {{
    low[i] = (i & STEP) ? LANES + i - STEP : i;
    high[i] = (i & STEP) ? LANES + i : i + STEP;
  }}
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) {{
    if (i & STEP) continue;
    const lanes a = rows[i], b = rows[i + STEP];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + STEP] = __builtin_shuffle(a, b, high);
  }}
}}

// Up to 32 rows of the weight, from column k on, as columns of the panel; those beyond are 0.
static void pack(const float* w, int64_t stride, int64_t columns, int64_t depth, float* panel) {{
  for (int64_t j = 0; j < WIDE; j += LANES) {{
    int64_t k = 0;
    if (columns >= j + LANES) {{
      for (; k + LANES <= depth; k += LANES) {{
        lanes rows[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) rows[i] = *reinterpret_cast<const loose*>(w + (j + i) * stride + k);
        turn<8>(rows);
        turn<4>(rows);
        turn<2>(rows);
        turn<1>(rows);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) *reinterpret_cast<lanes*>(panel + (k + i) * WIDE + j) = rows[i];
      }}
    }}
    for (; k < depth; ++k) {{
      for (int64_t i = j; i < j + LANES; ++i) panel[k * WIDE + i] = i < columns ? w[i * stride + k] : 0.0f;
    }}
  }}
}}

// COUNT rows of x times the panel, added to the tile.
template <int COUNT>
static inline void multiply(const float* x, int64_t stride, int64_t depth, const float* panel, float* tile) {{
  lanes sums[COUNT][2];
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {{
    sums[i][0] = *reinterpret_cast<lanes*>(tile + i * WIDE);
    sums[i][1] = *reinterpret_cast<lanes*>(tile + i * WIDE + LANES);
  }}
  for (int64_t k = 0; k < depth; ++k) {{
    const lanes left = *reinterpret_cast<const lanes*>(panel + k * WIDE);
    const lanes right = *reinterpret_cast<const lanes*>(panel + k * WIDE + LANES);
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; ++i) {{
      const float value = x[i * stride + k];
      sums[i][0] += value * left;
      sums[i][1] += value * right;
    }}
  }}
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {{
    *reinterpret_cast<lanes*>(tile + i * WIDE) = sums[i][0];
    *reinterpret_cast<lanes*>(tile + i * WIDE + LANES) = sums[i][1];
  }}
}}

void {name}(const float* x, const float* w, {bias}float* out, int64_t rows, int64_t wide, int64_t deep) {{
  const int64_t panels = (wide + WIDE - 1) / WIDE, blocks = (rows + TALL - 1) / TALL;
#pragma omp parallel for collapse(2) schedule(static) if (rows * wide * deep > {grain})
  for (int64_t number = 0; number < panels; ++number) {{
    for (int64_t block = 0; block < blocks; ++block) {{
      const int64_t begin = number * WIDE, columns = std::min<int64_t>(WIDE, wide - begin);
      const int64_t top = block * TALL, height = std::min<int64_t>(TALL, rows - top);
      alignas(64) float panel[DEEP * WIDE];
      alignas(64) float tile[TALL * WIDE];
      for (int64_t i = 0; i < height; ++i) {{
        for (int64_t j = 0; j < WIDE; ++j) tile[i * WIDE + j] = {first};
      }}
      for (int64_t k = 0; k < deep; k += DEEP) {{
        const int64_t depth = std::min<int64_t>(DEEP, deep - k);
        pack(w + begin * deep + k, deep, columns, depth, panel);
        const float* source = x + top * deep + k;
        int64_t i = 0;
        for (; i + ROWS <= height; i += ROWS) {{
          multiply<ROWS>(source + i * deep, deep, depth, panel, tile + i * WIDE);
        }}
        for (; i < height; ++i) multiply<1>(source + i * deep, deep, depth, panel, tile + i * WIDE);
      }}
{behind}      for (int64_t i = 0; i < height; ++i) {{
        float* row = out + (top + i) * wide + begin;
        for (int64_t j = 0; j < columns; ++j) row[j] = tile[i * WIDE + j];
      }}
    }}
  }}
}}
"""
_PARALLEL = re.compile(r"^\s*#pragma omp parallel.*\n", re.MULTILINE)
_GRAIN = 8
"""Multiplications that take as long as an element of other loops does."""


def product_region(graph: fx.Graph, target: str) -> Region | None:
    """The whole graph, if it is one float32 `linear` on the CPU and what is computed of it alone."""
    nodes = operators(graph)
    if target != "cpu" or not nodes or op_name(nodes[0]) != "linear":
        return None
    if nodes[0].meta.get("library_only") or len(nodes[0].args) < 2 or nodes[0].kwargs.keys() - {"bias"}:
        return None
    tensors = list(map(example, nodes[0].all_input_nodes))
    if any(t.dtype != torch.float32 or not t.is_contiguous() for t in tensors):
        return None
    if any(op_name(b) not in BEHIND or b.all_input_nodes != [a] for a, b in itertools.pairwise(nodes)):
        return None
    region = make_region(graph, nodes)
    return region if region is not None and region.outputs == nodes[-1:] else None


def product_variant(region: Region, name: str, parameters: int, plan: Plan) -> Variant:
    """The kernel of a product. Raises Unsupported, also where literals differ within the family."""
    if parameters:
        raise Unsupported("linear", "literals differ from graph to graph")
    has_bias = len(region.inputs) == 3
    rank = example(region.inputs[0]).dim()
    rows = " * ".join(f"s0[{d}]" for d in range(rank - 1)) or "1"
    epilogue, behind = _epilogue(region, plan) if len(region.nodes) > 1 else ("", "")
    source = _SOURCE.format(
        name=name,
        epilogue=epilogue,
        behind=behind,
        grain=plan.grain * _GRAIN,
        bias="const float* bias, " if has_bias else "",
        first="j < columns ? bias[begin + j] : 0.0f" if has_bias else "0.0f",
    )
    inputs = list(range(len(region.inputs)))
    kernel = Kernel(source, name, inputs, [rows, "s1[0]", "s1[1]"], [])
    guards = [f"s0[{rank - 1}] == s1[1]", *(["s2[0] == s1[0]"] if has_bias else [])]
    shape = [*(f"s0[{d}]" for d in range(rank - 1)), "s1[0]"]
    ranks = (rank, 2, 1)[: len(inputs)]
    dtypes = ("float32",) * len(inputs)
    return Variant(kernel, guards, [shape], ["float32"], [None], None, dtypes, (), ranks, [()], [""])


def _epilogue(region: Region, plan: Plan) -> tuple[str, str]:
    """A function for what follows the product, of a tile, and its call."""
    behind = Region(region.nodes[1:], [region.nodes[0]], region.outputs)
    low = lower_region(behind, (), "cpu", [_SINGLE] * (1 + len(behind.nodes)), [()])
    schedule, _ = stored(low.trace, low.outputs, [()], "cpu")
    kernel = cpp_text.CppWriter(schedule, "activate", ["x"], ["out"], plan).kernel([[]], [])
    if kernel.params or kernel.inputs != [0] or "<vector>" in kernel.source:
        raise Unsupported(op_name(region.nodes[-1]), "is not computed element by element")
    text = _PARALLEL.sub("", kernel.source).replace("void activate(", "static void activate(")
    sizes = ", ".join(["height * WIDE", *["1"] * (len(kernel.sizes) - 1)])
    call = f"      alignas(64) float values[TALL * WIDE];\n      activate(tile, values, {sizes});\n"
    return f"\n{text}", call + "      std::copy_n(values, height * WIDE, tile);\n"
