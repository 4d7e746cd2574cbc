"""KernelBench's problems as tasks: how many convert, and whether each computes what the problem does.

    python benchmarks/import_kernelbench.py ~/KernelBench --max-input 8 --work /tmp/kernelbench

Imports (or goes on with an import in --work). Raw results go to
benchmarks/results/import-kernelbench-DEVICE-DATE.json: a row for each problem, names and outcomes only.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from evaluator_repeatability import keep

from passagent.confine.environment import describe
from passagent.suites.import_problems import How, import_problems, read_record
from passagent.suites.problems import find_problems


def main() -> None:
    """Import, print the table, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="a checkout of KernelBench")
    parser.add_argument("--work", required=True, help="where the tasks go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-input", type=int, help="MiB")
    parser.add_argument("--timeout", type=float, default=900.0, help="s for a problem")
    parser.add_argument("--known", action="store_true", help="run nothing: the table of what is there")
    asked = parser.parse_args()
    problems = find_problems("kernelbench", asked.path, [1, 2, 3])
    how = How(asked.device, asked.max_input and asked.max_input << 20, asked.timeout)
    rows = []
    names = {problem.name for problem in problems}
    known = [row for name, row in read_record(Path(asked.work)).items() if name in names]
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
    fields = {"name", "reason", "message", "is_exact", "operators", "cut", "weak"}
    data = {
        "environment": describe(asked.device, 1),
        "suite_commit": problems[0].origin.commit,
        "max_input_mib": asked.max_input,
        "not_run": len(problems) - len(rows),
        "levels": levels,
        "problems": [row.model_dump(include=fields, exclude_defaults=True) for row in rows],
    }
    print(f"wrote {keep('import-kernelbench', asked.device, None, data)}")


if __name__ == "__main__":
    main()
