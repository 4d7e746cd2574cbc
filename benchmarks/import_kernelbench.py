"""KernelBench's problems as tasks: how many convert, and whether each computes what the problem does.

    python benchmarks/import_kernelbench.py ~/KernelBench --max-input 8 --work /tmp/kernelbench

Imports (or goes on with an import in --work). `--sample N` takes N problems, of each level in its share. Two
calls of Model(*init)(*inputs) must agree, and what was captured must compute the same within 1e-5; `exact`
counts those that do so bit by bit. Raw results go to
benchmarks/results/import-kernelbench-DEVICE-DATE.json: a row for each problem, names and outcomes only.
"""

from __future__ import annotations

import argparse
import random
import subprocess
from collections import Counter
from pathlib import Path

from evaluator_repeatability import keep

from passagent.sandbox.environment import describe
from passagent.tasks.suites.import_problems import import_problems, open_record
from passagent.tasks.suites.problems import How, Problem, find_problems


def sample(problems: list[Problem], count: int) -> list[Problem]:
    """So many, of each level in its share, drawn by a fixed seed."""
    levels: dict[str, list[Problem]] = {}
    for problem in random.Random(0).sample(problems, len(problems)):
        levels.setdefault(problem.group, []).append(problem)
    ranked = [(place / len(own), one) for own in levels.values() for place, one in enumerate(own)]
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:count]]


def main() -> None:
    """Import, print the table, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="a checkout of KernelBench")
    parser.add_argument("--work", required=True, help="where the tasks go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-input", type=int, help="MiB")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0, help="s for a problem")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--known", action="store_true", help="run nothing: the table of what is there")
    asked = parser.parse_args()
    problems = find_problems(asked.path, [1, 2, 3])
    if asked.sample:
        problems = sample(problems, asked.sample)
    how = How(asked.device, asked.max_input and asked.max_input << 20, asked.timeout, asked.jobs)
    rows = []
    names = {problem.name for problem in problems}
    known = [row for name, row in open_record(Path(asked.work)).rows.items() if name in names]
    for row in known if asked.known else import_problems(problems, Path(asked.work), how):
        rows.append(row)
        print(
            f"{len(rows)}/{len(problems)} {row.name}: {row.reason or 'converted'} {row.message}", flush=True
        )
    levels = {}
    for level in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == level]
        levels[level] = {
            "problems": len(own),
            "converted": sum(row.reason is None for row in own),
            "exact": sum(row.is_exact for row in own if row.reason is None),
            "tasks": sum(len(row.tasks) for row in own),
            "refused": Counter(row.reason for row in own if row.reason),
        }
        print(level, levels[level])
    command = ["git", "-C", asked.path, "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=False)
    fields = {"name", "reason", "message", "is_exact", "operators", "cut", "weak"}
    data = {
        "environment": describe(asked.device, 1),
        "suite_commit": head.stdout.strip(),
        "max_input_mib": asked.max_input,
        "sample": asked.sample,
        "not_run": len(problems) - len(rows),
        "levels": levels,
        "problems": [row.model_dump(include=fields, exclude_defaults=True) for row in rows],
    }
    print(f"wrote {keep('import-kernelbench', asked.device, asked.out, data)}")


if __name__ == "__main__":
    main()
