"""`best --format pass`: a run's passes of operators alone as files for `optimize --passes-dir`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import black

from passagent.errors import UsageError
from passagent.packages.delivery.deliver import Delivery, figures
from passagent.packages.loading import DeployedPass, load_package
from passagent.packages.package_operators import join
from passagent.packages.package_writing import Source, pack
from passagent.passes import described
from passagent.plan import artefact
from passagent.plan.model import Recording
from passagent.tasks.reader import Task


def pass_files(delivery: Delivery, recording: Recording, task: Task) -> dict[str, str]:
    """Return the passes' texts by file name, each with `applies` and `replacement` behind its own text.

    Raises UsageError for a pass that launches kernels and for one that imports another module,
    PassagentError where no pass can be deployed.
    """
    pass_names = {recorded.file for recorded in recording.passes}
    modules = [name for name in delivery.files if name.endswith(".py") and name not in pass_names]
    if modules:
        raise UsageError(f"--format pass: the passes use {modules[0]}, and such a file must stand alone")
    with tempfile.TemporaryDirectory() as place:
        source = Source("best", delivery.files, artefact.write(recording), task)
        pack([source], Path(place) / "best")
        passes = load_package(Path(place) / "best").passes
    kernels = [each.name for each in passes if each.rewrite is None]
    if kernels:
        other = f"passagent package {delivery.run} --out DIR takes it"
        raise UsageError(f"--format pass: {kernels[0]} launches kernels; {other}")
    return {each.planned.file: _text(delivery, each) for each in passes}


def _text(delivery: Delivery, deployed: DeployedPass) -> str:
    """Return the author's text with what a file of passes needs behind it."""
    measured = [
        join(skeleton, [(f"torch.{layout[2]}", layout[0]) for layout in key])
        for skeleton, name in deployed.skeletons
        for key in deployed.operators[name].calls
    ]
    parameters = ", ".join(str(node.target) for node in deployed.pattern.find_nodes(op="placeholder"))
    text = _BEHIND.format(
        node=delivery.node,
        run=delivery.run,
        figures=figures(delivery.evaluation),
        device=delivery.evaluation.device,
        measured=described(measured),
        parameters=parameters,
    )
    return black.format_str(delivery.files[deployed.planned.file] + text, mode=black.Mode())


_BEHIND = '''

# Behind here: what makes a file of passes of it. Node {node} of run {run}: {figures} on {device}.

from passagent.passes import described

MEASURED = {measured!r}
"""What the run measured: dtype and shape of each tensor, and every other value."""


def applies(**bound):
    """The run proved the rewrite for these only. If it is right for all sizes, delete this function."""
    return described(bound) in MEASURED


def replacement({parameters}):
    return replacement_func()(*replacement_args({parameters}))
'''
