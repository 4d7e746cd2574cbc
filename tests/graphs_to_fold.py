"""Full graphs in GraphNet's layout, tiny: layers of one kind, in a row."""

from pathlib import Path

from passagent.tasks.meta import TensorMeta, meta_source

LAYER = """\
        l{i}_0 = torch._C._nn.linear(x{i}, w{i}, b{i})
        l{i}_1 = torch._C._nn.gelu(l{i}_0)
        l{i}_2 = l{i}_1 * {scale}
        l{i}_3 = l{i}_2 + x{i}
        x{j} = torch.nn.functional.layer_norm(l{i}_3, (16,), None, None, 1e-05)
"""
OTHER = """\
        x{j} = torch.relu(x{i}) + torch.sigmoid(x{i}) - torch.tanh(x{i})
"""


def write_graph(path: Path, layers: int, scale: float = 0.5, body: str = LAYER) -> Path:
    """A sample of equal layers on (1, 8, 16); `s0`, a size, is recorded as GraphNet does."""
    path.mkdir(parents=True)
    weights = [(f"w{i}", (16, 16)) for i in range(layers)] + [(f"b{i}", (16,)) for i in range(layers)]
    names = ", ".join(f"{name}: torch.nn.parameter.Parameter" for name, _ in weights)
    lines = "".join(body.format(i=i, j=i + 1, scale=scale) for i in range(layers))
    (path / "model.py").write_text(
        "import torch\n\n\nclass GraphModule(torch.nn.Module):\n"
        f"    def forward(self, s0: torch.SymInt, x: torch.Tensor, {names}):\n"
        f"        x0 = x.view(1, s0, 16)\n{lines}        return (x{layers},)\n"
    )
    metas = [
        TensorMeta("s0", "s0", (), "int64", "cpu", data=[8]),
        TensorMeta("x", "L_x_", (1, 8, 16), "float32", "cuda:0", mean=0.0, std=1.0),
    ]
    for name, shape in weights:
        metas.append(TensorMeta(name, f"L_self_parameters_{name}_", shape, "float32", "cuda:0", std=0.1))
    (path / "weight_meta.py").write_text(meta_source(metas))
    (path / "input_meta.py").write_text("")
    return path
