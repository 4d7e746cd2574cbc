"""The candidates under tests/adversarial and tests/honest, and the small tasks that they are written for.

A case is a pass file as an author would write it, with a header of comments:

    # expect: refused (host_name)      a status; for a refusal its rule; `or` between alternatives
    # expect: credited (-4)            accepted, but only with what its timed calls reach: from this t on
    # expect: charged                  accepted, at the speed that it has where it does not find `timed`
    # expect: inert                    a plan has nothing of the attack, which has no later call to differ in
    # task: add_relu                   a key of TASKS (the default: add_relu)
    # gpu                              can only be judged on a GPU

A file `FAMILY.cases` holds several cases that share most of their lines: the shared text, with a line `***`
where each has lines of its own, then each case's lines, after `=== NAME` and with `--` between two places.

A directory of the same name holds the case's helper modules, and its manifest if that is not `[NAME]`. A line
`// NAME` or `# NAME` stands for the text of that file of tests/parts, which several cases share. A refusal
must point at the line that ends with `# <- here`, if there is one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import write_subgraph

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.target import uses_triton
from passagent.sandbox.child import ForkServer
from passagent.tasks.reader import Task, load_task

HERE = Path(__file__).parent
MARK = "# <- here"

Input = tuple[list[int], str] | tuple[list[int], str, list[str]]
"""Shape, dtype, and what was recorded of it if that is not the usual."""


@dataclass(frozen=True)
class TaskText:
    """Body of `forward`, and the inputs of each subgraph."""

    body: str
    subgraphs: list[list[Input]]


F32, BF16, F16, I64 = "float32", "bfloat16", "float16", "int64"
TASKS = {
    "chain_of_one_bounded": TaskText(
        "tmp_0 = torch.nn.functional.gelu(in_0)\ntmp_1 = torch.tanh(tmp_0)\ntmp_2 = torch.sin(tmp_1)\n"
        "tmp_3 = torch.exp(tmp_2)\ntmp_4 = torch.tanh(tmp_3)\nreturn (tmp_4,)",
        [[([512, 512], F32, ["mean = 0.5", "std = 0.3", "min_val = 0.0", "max_val = 1.0"])]],
    ),
    "add_relu": TaskText(
        "tmp_0 = in_0 + in_1\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)",
        [[([4, 64], F32)] * 2, [([2, 3, 25], BF16)] * 2],
    ),
    "conv_relu": TaskText(
        "tmp_0 = torch.conv2d(in_0, in_1, in_2, (1, 1), (1, 1))\ntmp_1 = torch.nn.functional.relu(tmp_0)\n"
        "return (tmp_1,)",
        [[([2, 3, 8, 8], F32), ([4, 3, 3, 3], F32), ([4], F32)]],
    ),
    "matmul": TaskText("tmp_0 = in_0 @ in_1\nreturn (tmp_0,)", [[([32, 16], F32), ([16, 16], F32)]]),
    "product_half": TaskText(
        "tmp_0 = in_0 @ in_1\ntmp_1 = tmp_0.max(-1)\ntmp_2 = tmp_1[0]\ntmp_3 = tmp_1[1]\n"
        "return (tmp_0, tmp_2, tmp_3)",
        [[([32, 48], BF16), ([48, 16], BF16)]],
    ),
    "product_relu_half": TaskText(
        "tmp_0 = in_0 @ in_1\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)",
        [[([192, 128], F16), ([128, 256], F16)]],
    ),
    "long_product_half": TaskText(
        "tmp_0 = in_0 @ in_1\ntmp_1 = tmp_0 * 0.0009765625\nreturn (tmp_1,)",
        [[([16, 256], BF16), ([256, 16], BF16)]],
    ),
    "softmax": TaskText(
        "tmp_0 = in_0 * 0.5\ntmp_1 = torch.nn.functional.softmax(tmp_0, dim=-1)\nreturn (tmp_1,)",
        [[([4, 20], F32)], [([2, 3, 16], BF16)]],
    ),
    "tall_softmax": TaskText(
        "tmp_0 = in_0 * 0.5\ntmp_1 = torch.nn.functional.softmax(tmp_0, dim=-1)\nreturn (tmp_1,)",
        [[([512, 512], F32)]],
    ),
    "layer_norm": TaskText(
        "tmp_0 = torch.nn.functional.layer_norm(in_0, (24,), in_1, in_2, 1e-05)\nreturn (tmp_0,)",
        [[([6, 24], F32), ([24], F32), ([24], F32)]],
    ),
    "gelu_half": TaskText(
        "tmp_0 = in_0 * in_1\ntmp_1 = torch.nn.functional.gelu(tmp_0)\nreturn (tmp_1,)",
        [[([4, 40], F16)] * 2],
    ),
    "wide_gelu": TaskText(
        "tmp_0 = torch.nn.functional.gelu(in_0)\ntmp_1 = torch.tanh(tmp_0)\nreturn (tmp_1,)",
        [[([128, 1024], F32)]],
    ),
    "wide_chain": TaskText(
        "tmp_0 = torch.nn.functional.gelu(in_0)\ntmp_1 = torch.tanh(tmp_0)\ntmp_2 = torch.sin(tmp_1)\n"
        "tmp_3 = torch.exp(tmp_2)\ntmp_4 = torch.tanh(tmp_3)\nreturn (tmp_4,)",
        [[([64, 1024], F32)]],
    ),
    "chain": TaskText(
        "tmp_0 = torch.nn.functional.gelu(in_0)\ntmp_1 = torch.tanh(tmp_0)\ntmp_2 = torch.sin(tmp_1)\n"
        "tmp_3 = torch.exp(tmp_2)\ntmp_4 = torch.tanh(tmp_3)\nreturn (tmp_4,)",
        [[([4, 512], F32)]],
    ),
    "wide_sine": TaskText("tmp_0 = torch.sin(in_0)\nreturn (tmp_0,)", [[([256, 1024], F32)]]),
    "mean": TaskText(
        "tmp_0 = in_0 * in_0\ntmp_1 = tmp_0.mean(-1, keepdim=True)\nreturn (tmp_1,)", [[([8, 32], F32)]]
    ),
    "quotient": TaskText(
        "tmp_0 = in_0.sum(-1, keepdim=True)\ntmp_1 = in_0 / tmp_0\nreturn (tmp_1,)", [[([2048, 48], F32)]]
    ),
    "wide_mean": TaskText(
        "tmp_0 = in_0 * in_0\ntmp_1 = tmp_0.mean(-1, keepdim=True)\nreturn (tmp_1,)", [[([16, 8192], BF16)]]
    ),
    "long_rms": TaskText(
        "tmp_0 = in_0 * in_0\ntmp_1 = tmp_0.mean(-1, keepdim=True)\ntmp_2 = torch.rsqrt(tmp_1)\n"
        "tmp_3 = in_0 * tmp_2\nreturn (tmp_3,)",
        [[([4, 1 << 18], BF16)]],
    ),
    "sum_all": TaskText("tmp_0 = in_0 * 2.0\ntmp_1 = tmp_0.sum()\nreturn (tmp_1,)", [[([8, 32], F32)]]),
    "two_outputs": TaskText(
        "tmp_0 = in_0 + in_1\ntmp_1 = torch.sigmoid(tmp_0)\nreturn (tmp_0, tmp_1)", [[([4, 32], F32)] * 2]
    ),
    "partial": TaskText(
        "tmp_0 = in_0 @ in_1\ntmp_1 = tmp_0 + 1.0\ntmp_2 = torch.nn.functional.relu(tmp_1)\nreturn (tmp_2,)",
        [[([8, 16], F32), ([16, 16], F32)]],
    ),
    "two_regions": TaskText(
        "tmp_0 = in_0 + in_1\ntmp_1 = torch.nn.functional.relu(tmp_0)\ntmp_2 = tmp_1 @ in_1\n"
        "tmp_3 = tmp_2 * 2.0\ntmp_4 = torch.tanh(tmp_3)\nreturn (tmp_4,)",
        [[([8, 8], F32)] * 2],
    ),
    "transpose_copy": TaskText(
        "tmp_0 = in_0.transpose(0, 1)\ntmp_1 = tmp_0.contiguous()\nreturn (tmp_1,)", [[([8, 20], F32)]]
    ),
    "transposed_input": TaskText(
        "tmp_0 = in_0.transpose(0, 1)\ntmp_1 = tmp_0 * 2.0\ntmp_2 = tmp_1 + in_1\nreturn (tmp_2,)",
        [[([8, 20], F32), ([20, 8], F32)]],
    ),
    "views": TaskText(
        "tmp_0 = in_0.view(4, 4, 8)\ntmp_1 = tmp_0.transpose(1, 2)\nreturn (tmp_1,)", [[([16, 8], F32)]]
    ),
    "relu_inplace": TaskText(
        "in_0 += in_1\ntmp_0 = torch.nn.functional.relu(in_0, inplace=True)\nreturn (tmp_0,)",
        [[([4, 32], F32)] * 2],
    ),
    "chain_inplace": TaskText(
        "in_0 += in_1\nin_0 *= 2.0\ntmp_0 = torch.nn.functional.relu(in_0, inplace=True)\nreturn (tmp_0,)",
        [[([4, 32], F32)] * 2, [([4, 32], BF16)] * 2],
    ),
    "copy_into_cache": TaskText(
        "tmp_0 = in_0 * 2.0\ntmp_1 = in_1.copy_(tmp_0)\nreturn (tmp_0,)", [[([4, 512], F32)] * 2]
    ),
    "put_into_cache": TaskText(
        "tmp_0 = in_0 * 2.0\ntmp_1 = in_1.index_put_((in_2,), tmp_0)\nreturn (tmp_0,)",
        [[([2, 512], F32), ([8, 512], F32), ([2], I64, ["data = [3, 6]"])]],
    ),
    "slice_of_cache": TaskText(
        "tmp_0 = in_0 * 2.0\nin_1[slice(2, 4, None)] = tmp_0\nreturn (tmp_0,)",
        [[([2, 512], F32), ([8, 512], F32)]],
    ),
    "statistics_in_training": TaskText(
        "tmp_0 = torch.nn.functional.batch_norm(in_0, in_1, in_2, None, None, True, 0.1, 1e-05)\n"
        "return (tmp_0,)",
        [[([64, 8], F32), ([8], F32), ([8], F32, ["min_val = 0.5", "max_val = 1.5"])]],
    ),
    "count_inplace": TaskText("in_0 += in_1\ntmp_0 = in_0 * 2\nreturn (tmp_0,)", [[([4, 32], I64)] * 2]),
    "broadcast": TaskText(
        "tmp_0 = in_0 + in_1\ntmp_1 = tmp_0 * in_2\nreturn (tmp_1,)",
        [[([4, 32], F32), ([32], F32), ([], F32)]],
    ),
    "empty": TaskText(
        "tmp_0 = in_0 + in_1\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)",
        [[([0, 64], F32)] * 2, [([4, 64], F32)] * 2],
    ),
    "log": TaskText(
        "tmp_0 = torch.nn.functional.relu(in_0)\ntmp_1 = torch.log(tmp_0)\nreturn (tmp_1,)",
        [[([4, 32], F32)]],
    ),
    "greater": TaskText("tmp_0 = in_0 * 2.0\ntmp_1 = tmp_0 > in_1\nreturn (tmp_1,)", [[([4, 32], F32)] * 2]),
    "mask": TaskText(
        "tmp_0 = in_0.to(torch.float32)\ntmp_1 = 1.0 - tmp_0\ntmp_2 = tmp_1 * -10000.0\nreturn (tmp_2,)",
        [[([2, 24], I64)]],
    ),
    "dropout": TaskText(
        "tmp_0 = torch.nn.functional.dropout(in_0, 0.1, False, False)\ntmp_1 = tmp_0 @ in_1\nreturn (tmp_1,)",
        [[([8, 16], F32), ([16, 8], F32)]],
    ),
    "zeros": TaskText(
        "tmp_0 = torch.zeros_like(in_0)\ntmp_1 = tmp_0 - 1.0\nreturn (tmp_1,)", [[([4, 16], F32)]]
    ),
    "shape_only": TaskText(
        "tmp_0 = torch.zeros_like(in_0)\ntmp_1 = tmp_0 + in_1\nreturn (tmp_1,)",
        [[([4, 16], F32), ([16], F32)]],
    ),
    "small_without_float64": TaskText(
        "tmp_0 = in_0 * 1e-07\ntmp_1 = torch.tanh(tmp_0)\ntmp_2 = in_0.view(torch.int32)\n"
        "return (tmp_1, tmp_2)",
        [[([4, 32], F32)]],
    ),
    "complex": TaskText(
        "tmp_0 = torch.view_as_complex(in_0)\ntmp_1 = tmp_0 * 0.5\ntmp_2 = tmp_1 * tmp_0\nreturn (tmp_2,)",
        [[([64, 32, 2], F32)]],
    ),
    "rotary": TaskText(
        "tmp_0 = torch.view_as_complex(in_0)\ntmp_1 = tmp_0 * in_1\ntmp_2 = torch.view_as_real(tmp_1)\n"
        "return (tmp_2,)",
        [[([3, 8, 2], F32), ([3, 8], "complex64")]],
    ),
    "tiny_values": TaskText(
        "tmp_0 = in_0 * 1e-07\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)", [[([4, 32], F32)]]
    ),
    "copied": TaskText(
        "tmp_0 = in_0.transpose(0, 1)\ntmp_1 = tmp_0.clone()\nreturn (tmp_1,)", [[([16, 32], F32)]]
    ),
    "spread_rows": TaskText(
        "tmp_0 = in_0.expand(16, 32)\ntmp_1 = tmp_0 * 2.0\ntmp_2 = tmp_1.transpose(0, 1)\nreturn (tmp_2,)",
        [[([1, 32], F32)]],
    ),
    "twice": TaskText(
        "tmp_0 = torch.nn.functional.relu(in_0)\ntmp_1 = tmp_0 * 1.0\nreturn (tmp_0, tmp_1)",
        [[([16, 32], F32)]],
    ),
    "relu_of_positives": TaskText(
        "tmp_0 = in_0 * 2.0\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)",
        [[([4, 64], F32, ["mean = 0.5", "std = 0.5", "min_val = 0.0"])]],
    ),
    "relu_of_negatives": TaskText(
        "tmp_0 = in_0 * 2.0\ntmp_1 = torch.nn.functional.relu(tmp_0)\nreturn (tmp_1,)",
        [[([4, 64], F32, ["mean = -900.0", "std = 0.5", "max_val = -0.5"])]],
    ),
    "centred": TaskText(
        "tmp_0 = in_0.mean(-1, keepdim=True)\ntmp_1 = in_0 - tmp_0\ntmp_2 = tmp_1 * 0.125\nreturn (tmp_2,)",
        [[([2, 1 << 17], BF16)]],
    ),
    "token_types": TaskText(
        "tmp_0 = torch.nn.functional.embedding(in_0, in_1)\ntmp_1 = tmp_0 + in_2\nreturn (tmp_1,)",
        [[([4, 6], I64, ["min_val = 0", "max_val = 0"]), ([2, 16], F32), ([4, 6, 16], F32)]],
    ),
    "embedding": TaskText(
        "tmp_0 = torch.nn.functional.embedding(in_0, in_1)\ntmp_1 = tmp_0 * 2.0\nreturn (tmp_1,)",
        [[([8, 32], I64, ["min_val = 0", "max_val = 49"]), ([50, 64], F32)]],
    ),
    "all_kept": TaskText(
        "tmp_0 = in_0.to(torch.float32)\ntmp_1 = tmp_0 * in_1\nreturn (tmp_1,)",
        [[([4, 64], I64, ["data = " + repr([1] * 256)]), ([4, 64], F32)]],
    ),
    "gather_table": TaskText(
        "tmp_0 = in_0.reshape(8, 8)\ntmp_1 = torch.nn.functional.avg_pool1d(tmp_0, 2)\nreturn (tmp_1,)",
        [[([64], F32)]],
    ),
}


def write_task(path: Path, named: str | TaskText) -> Task:
    """A task, or the one of TASKS that is `named` so, as a directory, loaded."""
    text = TASKS[named] if isinstance(named, str) else named
    parameters = ", ".join(f"in_{i}" for i in range(len(text.subgraphs[0])))
    body = "".join(f"        {line}\n" for line in text.body.split("\n"))
    model = (
        f"import torch\n\nclass GraphModule(torch.nn.Module):\n\n    def forward(self, {parameters}):\n{body}"
    )
    names = []
    for number, inputs in enumerate(text.subgraphs):
        names.append(f"graphs/g{number}_{inputs[0][1]}")
        directory = write_subgraph(path / names[-1], [1], model=model)
        metas = [_meta(i, *described) for i, described in enumerate(inputs)]
        (directory / "weight_meta.py").write_text("\n\n".join(metas))
    (path / "graph_list.txt").write_text("\n".join(names) + "\n")
    return load_task(path)


def _meta(number: int, shape: list[int], dtype: str, recorded: list[str] | None = None) -> str:
    lines = [
        f"class Program_weight_tensor_meta_x_{number}:",
        f'name = "in_{number}"',
        f'original_name = "x_{number}"',
        f"shape = {shape}",
        f'dtype = "torch.{dtype}"',
        'device = "cuda:0"',
    ]
    usual = ["min_val = 0", "max_val = 1"] if dtype == I64 else ["mean = 0.000", "std = 1.000"]
    lines += usual if recorded is None else recorded
    return "\n\t".join(lines) + "\n"


@dataclass(frozen=True)
class Case:
    """One file of a suite, read."""

    name: str
    expected: list[tuple[str, str | None]]
    """Statuses that are right, each with the rule of a refusal (None: any)."""
    task: str
    gpu: bool
    summary: str
    candidate: Candidate

    @property
    def device(self) -> str:
        """The device on which it is judged."""
        return "cuda" if self.gpu or uses_triton(self.candidate) else "cpu"

    def here(self) -> set[tuple[str, int]]:
        """File and line of each marked line; empty without a mark."""
        return {
            (file, number)
            for file, text in self.candidate.files.items()
            for number, line in enumerate(text.split("\n"), 1)
            if line.rstrip().endswith(MARK)
        }


@contextmanager
def referees_of(config: EvaluatorConfig, forks: ForkServer) -> Iterator[Callable[[str], Referee]]:
    """A referee for each device, started when it is first needed. `forks`: for the one on the CPU."""

    @functools.cache
    def referee(device: str) -> Referee:
        on_device = config.model_copy(update={"device": device})
        return stack.enter_context(Referee(on_device, forks if device == "cpu" else None))

    with ExitStack() as stack:
        yield referee


def read_family(path: Path) -> dict[Path, str]:
    """The cases of a family: for each the path and the text of a file of its own."""
    shared, *cases = re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)
    parts, texts = re.split(r"^\*{3}\n", shared, flags=re.MULTILINE), {}
    for case in cases:
        name, _, lines = case.partition("\n")
        places = re.split(r"^--\n", lines, flags=re.MULTILINE)
        assert len(places) == len(parts) - 1, f"{path.name}: {name} does not fit the shared text"
        text = "".join(part + place for part, place in zip(parts, [*places, ""], strict=True))
        texts[path.with_name(f"{name}.py")] = text
    return texts


def case_of(path: Path, text: str) -> Case:
    """The case of a file `path` with this text; its header says what is expected."""
    for part in (HERE / "parts").iterdir():
        for comment in ("//", "#"):
            text = text.replace(f"\n{comment} {part.name}\n", f"\n{part.read_text()}")
    header = dict(re.findall(r"^# (expect|task): (.+?)\s*$", text, re.MULTILINE))
    expected = [
        (match[1], match[2])
        for part in header["expect"].split(" or ")
        if (match := re.fullmatch(r"(\w+)(?: \(([\w-]+)\))?", part))
    ]
    assert expected, f"{path.name}: cannot read `# expect: {header['expect']}`"
    files = {path.name: text, MANIFEST: json.dumps([path.stem])}
    directory = path.with_suffix("")
    for file in sorted(directory.rglob("*")) if directory.is_dir() else []:
        if file.suffix in (".py", ".json"):
            files[file.relative_to(directory).as_posix()] = file.read_text()
    summary = re.search(r'"""(.+?)"""', text, re.DOTALL)
    assert summary, f"{path.name}: has no docstring"
    return Case(
        path.stem,
        expected,
        header.get("task", "add_relu"),
        re.search(r"^# gpu\b", text, re.MULTILINE) is not None,
        " ".join(summary[1].split()),
        Candidate(files),
    )


@functools.cache
def cases_of(directory: str) -> dict[str, Case]:
    """The cases of tests/adversarial or tests/honest by name."""
    texts = {path: path.read_text() for path in (HERE / directory).glob("*.py")}
    for family in (HERE / directory).glob("*.cases"):
        texts |= read_family(family)
    return {path.stem: case_of(path, texts[path]) for path in sorted(texts)}


def suite(directory: str) -> list:
    """The cases of tests/adversarial or tests/honest as parameters of a test."""
    return [
        pytest.param(case, id=name, marks=[] if case.device == "cpu" else [pytest.mark.gpu])
        for name, case in cases_of(directory).items()
    ]
