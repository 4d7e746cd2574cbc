"""Small models with what real ones have: breaks, views, masks, buffers, and what a task cannot hold."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(nn.functional.gelu(self.first(x))))


class Encoder(nn.Module):
    """Layers that are alike, behind a table of positions."""

    def __init__(self, layers: int = 3, width: int = 32):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.register_buffer("positions", torch.arange(64).expand(1, -1))
        self.place = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(self.positions[:, : ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x


class Attending(nn.Module):
    """Layers of attention written out, with a mask that all of them read."""

    def __init__(self, layers: int = 2, width: int = 32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        bias = ((1.0 - mask) * -1e4)[:, None, None, :]
        for layer in self.layers:
            q, k, v = layer(x).view(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
            weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.35 + bias, -1)
            x = self.norm(x + torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, width))
        return x


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.layer(x))
        print(end="")  # Dynamo breaks the graph here
        return torch.tanh(y) * 2


class Odd(nn.Module):
    """Takes a mask that is added, a transposed and an expanded tensor, and a view of its other input."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, wide: torch.Tensor, part: torch.Tensor, grown: torch.Tensor
    ) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(0, 1) + mask, -1) @ wide + part.sum() * grown


class Autocast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x


def encoder():
    torch.manual_seed(0)
    return Encoder().eval(), (torch.randint(50, (2, 16)),)


def broken():
    torch.manual_seed(0)
    return Broken().eval(), (torch.randn(4, 32),)


def odd():
    torch.manual_seed(0)
    mask = torch.zeros(12, 12).masked_fill(torch.ones(12, 12).triu(1).bool(), float("-inf"))
    base = torch.randn(12, 20).abs()
    return Odd(), (base, mask, torch.randn(8, 12).t(), base[2:4, 3:9], torch.randn(1, 8).expand(12, 8))


def training():
    torch.manual_seed(0)
    return Layer().train(), (torch.randn(4, 32, requires_grad=True),)


def autocast():
    return Autocast(), (torch.randn(8, 8),)


def bare():
    return Layer().eval()


def inputs():
    return {"x": torch.randn(4, 32)}


def no_tensors():
    return (lambda x: x + 1), (3,)


def failing():
    raise RuntimeError("no network")


def wrong():
    return 3


def fails_inside():
    return Layer().eval(), (torch.randn(4, 31),)


def attending():
    torch.manual_seed(0)
    return Attending().eval(), (torch.randn(2, 16, 32), torch.ones(2, 16))
