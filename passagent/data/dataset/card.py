"""The data set's card: what is in it, where it comes from, how it was chosen, and how to make it again."""

from __future__ import annotations

from typing import Any

from passagent import __version__
from passagent.data.dataset.formats import Format
from passagent.data.dataset.writing import Summary

_MOST = 40
"""Source tasks that are listed; the others are in provenance.jsonl."""

_WORDS = {
    "by": "an example is one",
    "keep": "kept where",
    "best_of": "at most of a task",
    "per_sequence": "at most of an operator sequence",
    "against": "apart from the tasks of",
}
"""What the parts of a selection mean."""


def card(form: Format, summary: Summary, asked: dict[str, Any], tasks: dict[str, int]) -> str:
    """README.md in Markdown. tasks: name to its number of examples."""
    return "\n".join(
        [
            *_front(summary, ".parquet" if asked["parquet"] else ".jsonl"),
            "# Trajectories of compiler-pass search",
            "",
            f"{summary.examples} examples in {summary.rows} rows of the format `{form.name}` "
            f"({form.about}), made by passagent {__version__}. Each is a conversation in which a model wrote "
            "compiler passes for a PyTorch subgraph and had them judged by passagent's evaluator.",
            "",
            *_section("Made with", ["```", asked["command"], "```"]),
            *_section("Chosen", _chosen(asked)),
            *_section("Models", _shares(summary.models, summary.examples)),
            *_section(
                "Devices and evaluators", _shares(summary.devices | summary.evaluators, summary.examples)
            ),
            *_section("Reasoning", [_reasoning(summary)]),
            *_section("Lengths", _lengths(summary)),
            *_section("Source tasks", _tasks(summary, tasks)),
            *_section(
                "Licences",
                [
                    "The graphs stand under the licences of the models that they were recorded from. What a "
                    "model wrote is subject to its provider's terms, some of which forbid to train "
                    "competing models on it: see Models.",
                ],
            ),
            *_section(
                "Where a row comes from",
                [
                    "`provenance.jsonl` has a line for each row: its file and line, sha256, run, episode, "
                    "model, evaluator version, device, the scores of its candidates. "
                    "`passagent check` holds the data against it.",
                ],
            ),
        ]
    )


def _front(summary: Summary, suffix: str) -> list[str]:
    """What the Hugging Face hub reads."""
    configs = []
    for name in summary.files:
        if not name.startswith("*"):
            stem = name.removesuffix(".jsonl")
            configs += [f"- config_name: {stem}", f"  data_files: {stem}{suffix}"]
    head = ["configs:", *configs] if configs else []
    return ["---", *head, "tags: [passagent, tool-use, compilers]", "---", ""]


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _chosen(asked: dict[str, Any]) -> list[str]:
    return [f"- {_WORDS[name]}: `{value}`" for name, value in asked["selection"].items()]


def _shares(counts: dict[str, int], whole: int) -> list[str]:
    return [f"- `{name}`: {count} ({count / whole:.0%})" for name, count in sorted(counts.items())]


def _reasoning(summary: Summary) -> str:
    said = (
        f"Of {summary.replies} replies {summary.trained} are trained; for {summary.without_reasoning} of "
        "these no reasoning text is known."
    )
    if summary.without_reasoning:
        said += " A chat template that writes an empty thought for them teaches not to think: choose another."
    return said


def _lengths(summary: Summary) -> list[str]:
    ranks = ", ".join(f"{name} {count}" for name, count in summary.tokens.items())
    cuts = ", ".join(f"{count} at {int(most):,} tokens" for most, count in summary.cut.items())
    return [f"Tokens ({summary.counted_by}): {ranks}. Examples that a context length would cut: {cuts}."]


def _tasks(summary: Summary, tasks: dict[str, int]) -> list[str]:
    named = sorted(tasks.items())[:_MOST]
    more = [f"- and {len(tasks) - _MOST} more"] if len(tasks) > _MOST else []
    counted = [f"{summary.tasks} tasks, {summary.sequences} operator sequences.", ""]
    return [*counted, *(f"- {name}: {count}" for name, count in named), *more]
