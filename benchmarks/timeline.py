"""Where the seconds of a command go: imports, requests to workers, checks and timing, of all its processes.

    python benchmarks/timeline.py --least 0.01 run examples/tasks/add_layer_norm --device cuda --iters 1

What stands behind the options is passagent's command line. Prints a line for each thing that was noted: when
it was over (seconds since the command began), the process, how long it took, and what it was. Noting takes
some microseconds a call; figures to publish are measured without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Command line; the exit code is the command's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", type=float, default=0.001, help="leave out what took less, s")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="passagent's arguments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as notes:
        path = [str(HERE / "timeline_hooks"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PASSAGENT_TIMELINE": notes, "PYTHONPATH": os.pathsep.join(path)}
        begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        command = subprocess.Popen([sys.executable, "-m", "passagent", *args.command], env=environment)
        while command.returncode is None:
            with suppress(KeyboardInterrupt):  # passagent's, too: it ends by itself
                command.wait()
        lines = [line for file in Path(notes).iterdir() for line in file.read_text().splitlines()]
    for line in sorted(lines, key=lambda line: float(line.split()[0])):
        at, process, took, text = line.split(maxsplit=3)
        if text.startswith(("begin", "end", "import")) or float(took) >= args.least:
            print(f"{float(at) - begun:8.3f} {process:>7} {float(took):8.3f} {text}")
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
