"""Environments of the slow checks: tools whose requirements do not fit passagent's own, one each.

`checks/environments/NAME.txt` holds the pinned requirements. `.envs/NAME` in the checkout is made of them
once, and again when they change. The checkout's `passagent` can be imported there, and behind the
environment's own packages what is installed for the one that asks (torch and the like), if it is for the
same Python. Lines with options are pip's; `--no-compile` where most of the modules are never imported.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).with_name("environments")
MINUTES = 20


def python_of(name: str, least: tuple[int, int] | None = None) -> Path:
    """The interpreter of the environment `name`, made if it is not there or its requirements changed.

    `least`: the oldest Python that will do, such as (3, 12); without it, the one that asks. Raises
    FileNotFoundError where there is no such Python, CalledProcessError where pip fails.
    """
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    base = find_python(least)
    is_same = base == Path(sys.executable)
    paths = [str(ROOT), *(path for path in sys.path if is_same and path.endswith("site-packages"))]
    stamp = hashlib.sha256("\n".join([str(base), text, *paths]).encode()).hexdigest()
    place = ROOT / ".envs" / name
    place.parent.mkdir(exist_ok=True)
    with (place.parent / f"{name}.lock").open("w") as lock:  # two workers may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = place / "made-from"
        if not made.exists() or made.read_text() != stamp:
            _make(base, place, text, paths)
            made.write_text(stamp)
    return place / "bin/python"


def node_modules(name: str) -> Path:
    """The directory of the npm packages that `environments/NAME/package.json` pins; programs are in `.bin`.

    Raises FileNotFoundError where there is no npm, CalledProcessError where it fails.
    """
    if shutil.which("npm") is None:
        raise FileNotFoundError("npm was not found")
    text = (REQUIREMENTS / name / "package.json").read_text()
    place = ROOT / ".envs" / f"{name}-node"
    place.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{name}-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = place / "made-from"
        if not made.exists() or made.read_text() != text:
            (place / "package.json").write_text(text)
            options = ("--no-audit", "--no-fund", "--loglevel=error")
            _run("npm", "install", "--prefix", place, *options)
            made.write_text(text)
    return place / "node_modules"


def find_python(least: tuple[int, int] | None) -> Path:
    """A Python of at least this version: the running one, one on PATH, or one of pyenv's.

    Raises FileNotFoundError.
    """
    if least is None or sys.version_info >= least:
        return Path(sys.executable)
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    found = [shutil.which(name) for name in names]
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found += [str(path) for path in sorted(installed.glob("3.*/bin/python"))]
    for path in filter(None, found):
        if _version(path) >= least:
            return Path(path)
    raise FileNotFoundError(f"no Python {least[0]}.{least[1]} or newer was found")


def _version(python: str) -> tuple[int, ...]:
    """Major and minor version of an interpreter; (0, 0) for one that does not run, as a shim of pyenv's."""
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(int(word) for word in done.stdout.split()) if done.returncode == 0 else (0, 0)


def _make(base: Path, place: Path, text: str, paths: list[str]) -> None:
    """Make the environment from nothing, with these directories at the end of its path."""
    shutil.rmtree(place, ignore_errors=True)
    _run(base, "-m", "venv", "--without-pip", place)
    (site,) = place.glob("lib/python3.*/site-packages")
    (site / "checkout.pth").write_text("\n".join(paths) + "\n")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    options = [word for line in lines if line.startswith("--") for word in line.split()]
    packages = [line for line in lines if not line.startswith("--")]
    pip = (sys.executable, "-m", "pip", "--python", place / "bin/python", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", *options, *packages)


def _run(*command: str | Path) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    subprocess.run([*map(str, command)], env=environment, check=True, timeout=MINUTES * 60)
