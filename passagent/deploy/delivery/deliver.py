"""From a run's winning node to a directory that a person reviews: format, record, test, describe."""

from __future__ import annotations

import black
import torch

from passagent.config import EvaluatorConfig
from passagent.deploy.delivery.oracle import read_cases, test_text
from passagent.deploy.delivery.readme import Delivery, listed, needs, readme
from passagent.evaluator.candidate import HELPER, PLANS, TESTS, Candidate
from passagent.evaluator.target import uses_triton
from passagent.plan import artefact
from passagent.plan.facts import device_facts
from passagent.plan.messages import Recorded
from passagent.plan.record import record, subgraphs_of
from passagent.plan.show import recording_text
from passagent.sandbox.child import ForkServer
from passagent.tasks.reader import Task


def deliver(delivery: Delivery, task: Task, process: ForkServer, config: EvaluatorConfig) -> None:
    """Format the files of `delivery`, and add plans, a test and a README.

    A formatted file has the syntax tree of the author's, so that the run's figures stand. Where nothing can
    be recorded, the files stay as they are and the README says why.
    """
    written = delivery.files
    target = "cpu" if config.device == "cpu" and not uses_triton(Candidate(written)) else "cuda"
    subgraphs = subgraphs_of(task, target)
    try:
        delivery.files = {name: _formatted(name, text) for name, text in written.items()}
    except (black.InvalidInput, black.ASTSafetyError) as error:
        delivery.notes.append(f"The text is as its author wrote it: {str(error).splitlines()[0]}.")
    facts, candidate = device_facts(config.device), Candidate(delivery.files)
    answer = record(process, candidate, subgraphs, target, facts)
    why = ""
    if not isinstance(answer, Recorded):
        why = f"no plan comes of it ({answer.message.splitlines()[0]})"
    elif answer.failed:
        failure = answer.failed[0]
        why = f"no plan comes of it for {failure.subgraph} ({failure.why.message.splitlines()[0]})"
    if why or not isinstance(answer, Recorded):
        delivery.files = written
        delivery.notes = [f"It is as its author wrote it: {why}."]
    else:
        delivery.recording = answer.recording
        delivery.files |= {"plan.txt": recording_text(answer.recording) + "\n"}
        delivery.files |= {f"{PLANS}/{name}": text for name, text in artefact.write(answer.recording).items()}
        device = config.device if config.device == "cpu" or torch.cuda.is_available() else "cpu"
        levels = (graph.passes_from_t for graph in delivery.evaluation.graphs)
        words = listed(["pytest", "torch", *needs(answer.recording)])
        try:
            cases = read_cases(answer.recording, subgraphs, task, device)
            delivery.files |= {TESTS: test_text(cases, config.device, words, levels)}
        except ValueError as error:
            delivery.notes.append(f"There is no `{TESTS}`: {error}.")
    delivery.files |= {"README.md": readme(delivery)}


def _formatted(name: str, text: str) -> str:
    if not name.endswith(".py") or name == HELPER:
        return text
    formatted = black.format_str(text, mode=black.Mode())
    black.assert_equivalent(text, formatted)
    return formatted
