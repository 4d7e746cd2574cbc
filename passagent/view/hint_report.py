"""The curated and learned hints with origin and uplift: for `passagent hints` and the page."""

from __future__ import annotations

import textwrap
from typing import Any

from passagent.experience.hints import LearnedHint, load_hints, uplift
from passagent.store import Store, hint_uses
from passagent.view.text import percent, printable, width


def hint_data(store: Store) -> dict[str, Any]:
    """Return all hints, learned ones first, and the uplift of learned hints together, as plain data."""
    uses, outcomes = hint_uses.times_shown(store), hint_uses.outcomes(store)
    hints: list[dict[str, Any]] = []
    for row in reversed(hint_uses.learned(store)):
        hint = LearnedHint.model_validate_json(row.hint)
        about = [outcome for outcome in outcomes if outcome.hint_id == hint.id]
        origin = f"run {row.run_id}, node {row.node_id}, {row.author}"
        hints.append(hint.model_dump() | {"origin": origin, "uplift": _uplift(about)})
    hints += [hint.model_dump() | {"origin": "curated", "uplift": None} for hint in load_hints()]
    for fields in hints:
        fields["shown"] = uses.get(fields["id"], 0)
    together = {outcome.episode_id: outcome for outcome in outcomes}
    return {"hints": hints, "uplift": _uplift([*together.values()])}


def _uplift(outcomes: list[hint_uses.Outcome]) -> dict[str, Any]:
    gains = [outcome.gain for outcome in outcomes if outcome.is_shown]
    return uplift(gains, [outcome.gain for outcome in outcomes if not outcome.is_shown])._asdict()


def uplift_text(uplift: dict[str, Any]) -> str:
    """Write an uplift as `+3.1% (0.4% to 6.0%)`."""
    if uplift["estimate"] is None:
        return "not known yet"
    if uplift["low"] is None:
        return percent(uplift["estimate"])
    return f"{percent(uplift['estimate'])} ({percent(uplift['low'])} to {percent(uplift['high'])})"


def hints_text(data: dict[str, Any]) -> str:
    """Write all hints with the uplift of learned ones."""
    lines = [f"uplift of learned hints: {uplift_text(data['uplift'])}"]
    for hint in data["hints"]:
        line = f"{hint['id']}: {hint['origin']}; shown {hint['shown']}"
        if hint["uplift"]:
            line += f", held out {hint['uplift']['held_out']}, uplift {uplift_text(hint['uplift'])}"
        lines.append(
            f"\n{line}\n{textwrap.indent(textwrap.fill(printable(hint['advice']), width() - 2), '  ')}"
        )
    return "\n".join(lines)
