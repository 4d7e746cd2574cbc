"""A run whose model is a server's and whose candidates are judged at once, for the tests of the ledger.

Also a program: `python tests/paid_run.py run TASK RUNS_DIR ITERS ISLANDS MODELS [KEY=VALUE ...]` and
`... resume RUN RUNS_DIR` are `passagent run` and `passagent resume` with the real SDK clients and a fast
evaluator; MODELS is what `--model` takes, separated by spaces. `... collect WORDS` is `passagent collect`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import tiny_search
from wire_server import Said

from passagent.evaluator.result import Candidate, Evaluation
from passagent.options import parse_models, parse_set

SECRETS = {
    "OPENAI_API_KEY": "sk-planted-0123456789abcdef",
    "ANTHROPIC_API_KEY": "planted-ant-0123456789abcdef",
    "HF_TOKEN": "planted_hf_0123456789abcdef",
}
"""Planted in the environment; the server says them in its replies, and the keys in its errors."""


def brain(body: dict[str, Any]) -> Said:
    """What tiny_search.reply says, with counts that are fixed by the conversation alone."""
    text = json.dumps(body)
    found = re.search(r"Episode seed: (\d+)", text)
    if found is None:  # a check, not an episode
        return Said(calls=[("c", "report", '{"word": "ready"}')])
    seed, step = int(found.group(1)), 1 + max(map(int, re.findall(r'"s(\d+)_\d+"', text)), default=-1)
    task = {"role": "user", "content": f"Episode seed: {seed}"}
    earlier = [{"role": "assistant", "content": "", "tool_calls": []}] * step
    reply = tiny_search.reply([task, task, *earlier], [])
    calls = reply["tool_calls"] if isinstance(reply, dict) else []
    digest = hashlib.sha256(f"{body['model']} {seed} {step}".encode()).digest()
    return Said(
        text="" if calls else f"{reply} {' '.join(SECRETS.values())}",
        calls=[(f"s{step}_{i}", call["name"], call["arguments"]) for i, call in enumerate(calls)],
        input_tokens=1000 + digest[0],
        output_tokens=100 + digest[1],
        cached=digest[2],
        key=(seed, step),
    )


class AnyEvaluator(tiny_search.FastEvaluator):
    """Judges the candidates of other authors, too, by their content."""

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        if "Fused.py" not in candidate.files:
            candidate = Candidate(tiny_search.candidate_files(candidate.key))
        return await super().evaluate(task_path, candidate)


def parts() -> Any:
    """The stand-ins for evaluator and diagnosis; the model is the configured one."""
    from passagent.search.setup import Parts

    return Parts(None, AnyEvaluator(), tiny_search.diagnose)


def settings(iters: int, islands: int, models: str, *pairs: str) -> dict[str, Any]:
    """The settings of such a run."""
    fixed = {
        "search.stagnation": 2,
        "search.finalists": 0,
        "search.expert_seeds": 0,
        "search.iters": iters,
        "search.islands": islands,
    }
    return fixed | parse_models(models.split()) | parse_set(list(pairs))


def child(environment: dict[str, str], log: str, words: list[str]) -> None:
    """`program` with `words` in a forked process, its output in the file `log`."""
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["paid_run", *words]
    from passagent.cli import guarded

    guarded(program)


def program() -> None:
    """The entry behind `main`, so that its errors and exit codes are those of the command line."""
    from passagent.cli import running
    from passagent.models import retry

    retry.backoff = lambda number: random.uniform(0, 0.05)  # type: ignore[assignment]
    if sys.argv[1] == "collect":
        return collect()
    verb, target, runs_dir, *rest = sys.argv[1:]
    if verb == "run":
        iters, islands, models, *pairs = rest
        chosen = settings(int(iters), int(islands), models, *pairs)
        running.run(target, {"settings": chosen, "runs_dir": runs_dir}, True, parts())
    else:
        running.resume(target, {"settings": {}, "runs_dir": runs_dir}, True, parts())


def collect() -> None:
    """The command line itself, with a fast evaluator behind it."""
    from passagent import cli
    from passagent.data.collect import campaign

    real = campaign.open_collection
    campaign.open_collection = lambda *words: real(*words, parts())  # type: ignore[assignment]
    cli.app(standalone_mode=False)


if __name__ == "__main__":
    from passagent.cli import guarded

    guarded(program)
