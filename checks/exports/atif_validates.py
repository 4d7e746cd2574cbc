"""`python atif_validates.py DIR...`: harbor's validator reads every document."""

import sys
from importlib.metadata import version
from pathlib import Path

import tiny
from harbor.utils.trajectory_validator import TrajectoryValidator

for place in sys.argv[1:]:
    paths = sorted(Path(place).glob("*.json"))
    errors = {}
    for path in paths:
        validator = TrajectoryValidator()
        if not validator.validate(path):
            errors[path.name] = validator.get_errors()
    tiny.tell(errors=errors, count=len(paths), versions={"harbor": version("harbor")})
