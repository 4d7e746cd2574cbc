"""Checks of `passagent doctor`: whether the search's mechanisms did what they are for."""

from __future__ import annotations

import math

from passagent.config import Config
from passagent.search.migration import why_none
from passagent.search.policies import policy_of
from passagent.store import Store, bests, nodes, runs
from passagent.store.runs import Run
from passagent.view import run_figures
from passagent.view.machine_checks import Finding
from passagent.view.text import percent

REPEATS = 0.3
"""Share of nodes that may be equal to an earlier one."""
FLATTERY = 0.02
"""How much the first measurement of the finalists may be above the second, relative."""


def islands(store: Store, run: Run, config: Config) -> Finding:
    """Whether every island had its share of the episodes."""
    found = runs.islands(store, run.id)
    done = [island.episodes for island in found]
    shown = {"episodes": done, "best_as": [island.best_as for island in found]}
    said = f"{len(done)} islands, {min(done)} to {max(done)} episodes each"
    if len(done) == 1:
        return Finding("islands", "ok", f"one island, {done[0]} episodes", "", shown)
    if min(done) == 0 and max(done) > 1:
        return Finding(
            "islands",
            "fail",
            said,
            "an island finished no episode: passagent status RUN --follow says why",
            shown,
        )
    if max(done) - min(done) > max(1, 0.25 * max(done)):
        advice = "an island is much slower: look at its model's latency (passagent show RUN)"
        return Finding("islands", "warn", said, advice, shown)
    return Finding("islands", "ok", said, "", shown)


def elite_migrations(store: Store, run: Run, config: Config) -> Finding:
    """Whether elites moved, and helped; or why none did."""
    moved = bests.list_migrations(store, run.id)
    gains = run_figures.migrant_gains(store, run.id)
    helped = sum(gain is not None and gain > 0 for gain in gains)
    islands = runs.islands(store, run.id)
    best = max((island.best_as for island in islands if island.best_as is not None), default=None)
    stuck = [
        island.island
        for island in islands
        if policy_of(config.search).scope == "islands"
        and island.stagnant > config.search.stagnation + 1
        and best is not None
        and (island.best_as or 0.0) < best
        and not any(one.to_island == island.island for one in moved)
    ]
    shown = {"migrations": len(moved), "helped": helped, "stuck_islands": stuck}
    if stuck:
        said = f"{len(moved)}; island {', '.join(map(str, stuck))} stagnates behind the others without one"
        return Finding("migrations", "warn", said, "lower search.stagnation, or look at the policy", shown)
    if not moved:
        return Finding("migrations", "ok", why_none(store, run, config.search), "", shown)
    said = f"{len(moved)}, and {helped} of the {len(gains)} episodes from a migrant gained over it"
    return Finding("migrations", "ok", said, "", shown)


def hints(store: Store, run: Run, config: Config) -> Finding:
    """Check that hints were shown."""
    found = run_figures.hint_figures(store, run.id)
    shown = found._asdict()
    if not config.agent.hints:
        return Finding("hints", "ok", "turned off (agent.hints is 0)", "", shown)
    if found.episodes and not found.hints:
        said = f"none was shown in {found.episodes} episodes"
        return Finding("hints", "fail", said, "see whether knowledge/hints.yaml fits the task", shown)
    said = f"{found.hints} different ones in {found.with_hints} of {found.episodes} episodes"
    return Finding("hints", "ok", said, "", shown)


def duplicates(store: Store, run: Run, config: Config) -> Finding:
    """Whether equal candidates were avoided, and none was evaluated twice."""
    found = run_figures.duplicates(store, run.id)
    share = found.equal / found.nodes if found.nodes else 0.0
    shown = found._asdict() | {"share": share}
    said = f"{found.equal} of {found.nodes} nodes are equal to an earlier one ({share:.0%}), "
    if found.rewritten:
        said += f"{found.rewritten} of them but for comments and formatting, "
    if not config.search.reuse:
        return Finding("duplicates", "ok", f"{said}evaluated anew (search.reuse is off)", "", shown)
    if found.evaluated_again:
        said += f"{found.evaluated_again} candidates were evaluated more than once under the same conditions"
        return Finding("duplicates", "fail", said, "evaluations were wasted: report this", shown)
    said += "none was evaluated twice"
    if found.nodes >= 10 and share > REPEATS:
        advice = "the model repeats itself: raise its temperature, or take another policy or more roles"
        return Finding("duplicates", "warn", said, advice, shown)
    return Finding("duplicates", "ok", said, "", shown)


_ADVICE = {
    "refused": "see which rules in passagent show RUN; a role prompt may tempt the model",
    "mismatch": "patterns do not match: a stronger model, or more steps (agent.max_steps)",
    "wrong_result": "numerics: add the role numerics, or look at passagent show NODE --why of some",
    "infrastructure": "the machine fails evaluations: see run.log",
}


def candidates(store: Store, run: Run, config: Config) -> Finding:
    """What became of the candidates."""
    counts: dict[str, int] = {}
    for of_island in nodes.counts(store, run.id).values():
        for status, count in of_island.items():
            counts[status] = counts.get(status, 0) + count
    total, right = sum(counts.values()), counts.get("ok", 0)
    said = ", ".join(
        f"{count / total:.0%} {status}" for status, count in sorted(counts.items(), key=lambda i: -i[1])
    )
    said = f"{total} nodes: {said}" if total else "none yet"
    worst = max((s for s in counts if s != "ok"), key=lambda s: counts[s], default="")
    advice = _ADVICE.get(worst, "passagent show NODE shows a failed one")
    if counts.get("infrastructure"):
        return Finding("candidates", "warn", said, _ADVICE["infrastructure"], counts)
    if total >= 10 and not right:
        return Finding("candidates", "fail", said, advice, counts)
    if total >= 10 and right / total < 0.2:
        return Finding("candidates", "warn", said, advice, counts)
    return Finding("candidates", "ok", said, "", counts)


def finalists(store: Store, run: Run, config: Config) -> Finding:
    """Whether the second measurement bears out the first."""
    found = run_figures.finalists(store, run.id)
    pairs = [(one.first_as, one.second_as) for one in found if one.status == "ok"]
    ratios = [math.log(second / first) for first, second in pairs if first and second]
    failed = [one.node for one in found if one.status != "ok"]
    mean = sum(ratios) / len(ratios) if ratios else None
    shown = {"measured_again": len(found), "no_longer_right": failed, "mean_change": mean}
    if not found:
        is_due = run.state == "finished" and config.search.finalists and _right(store, run.id)
        said = "no node was measured again"
        if is_due:
            return Finding(
                "finalists", "fail", said, "the run's winner may be luck: passagent resume RUN", shown
            )
        return Finding("finalists", "ok", f"{said} yet", "", shown)
    said = f"{len(found)} measured again, on average {percent(mean)} against the first time"
    if failed:
        said += f"; node {', '.join(map(str, failed))} was not right the second time"
        return Finding("finalists", "warn", said, "passagent show NODE tells what failed", shown)
    if mean is not None and mean < -FLATTERY:
        advice = "first measurements flatter: raise evaluator.budget_s or evaluator.trials"
        return Finding("finalists", "warn", said, advice, shown)
    return Finding("finalists", "ok", said, "", shown)


def _right(store: Store, run_id: str) -> int:
    return sum(of_island.get("ok", 0) for of_island in nodes.counts(store, run_id).values())
