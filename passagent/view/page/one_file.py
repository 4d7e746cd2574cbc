"""A run as one HTML file, which opens from disk: the pages' own templates, one below the other."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from markupsafe import Markup

from passagent import __version__
from passagent.search import finalists
from passagent.store import Store, nodes
from passagent.store.nodes import Node
from passagent.store.runs import Run
from passagent.view.page import views
from passagent.view.page.rendering import HERE, environment
from passagent.view.why import lineage

MOST_NODES = 16
"""Candidates that are shown whole."""


def anchor(*parts: object) -> str:
    """The name of a page in the file."""
    return "-".join(map(str, parts))


def one_file(store: Store, run: Run) -> str:
    """The run, its tree, the nodes that matter (see `_chosen`) and the conversation that made the best."""
    best, figures = finalists.winner(store, run.id), views.figures(store, run.id)
    node_ids = _chosen(store, run, best, [row["node_id"] for row in figures["finalists"]])
    pages: list[tuple[str, str, dict[str, Any]]] = [
        (anchor("run", run.id), "run.html", views.run(store, run.id) | figures),
        (anchor("run", run.id, "tree"), "tree.html", views.tree(store, run.id)),
        *((anchor("node", number), "node.html", views.node(store, number)) for number in node_ids),
    ]
    if best is not None:
        episode_data = views.episode(store, run.id, str(best.number))
        pages.append((anchor("run", run.id, "episode", best.number), "episode.html", episode_data))
    templates, inside = environment(), {name for name, _, _ in pages}
    base = {
        "go": lambda *parts, **query: f"#{anchor(*parts)}" if anchor(*parts) in inside else None,
        "layout": "section.html",
        "is_file": True,
        "csrf": "",
        "version": __version__,
    }
    sections = [
        templates.get_template(template).render(base | context | {"anchor": name})
        for name, template, context in pages
    ]
    style, script = _asset("page.css"), _asset("page.js")
    return templates.get_template("one_file.html").render(
        base
        | {
            "run": run,
            "best": best,
            "shown": node_ids,
            "sections": Markup("\n").join(map(Markup, sections)),
            "style": Markup(style),
            "script": Markup(script),
            "hashes": {"style": _hash(style), "script": _hash(script)},
        }
    )


def _chosen(store: Store, run: Run, best: Node | None, finalists: list[int]) -> list[int]:
    """The best node's lineage, the finalists, and the newest of each kind of failure, at most MOST_NODES."""
    node_ids = [node.id for node in reversed(lineage(store, best))] if best else []
    rows = store.rows(
        "SELECT max(id) AS id FROM nodes WHERE run_id = :run AND state = 'done' AND status != 'ok' "
        "GROUP BY status",
        {"run": run.id},
    )
    node_ids += [*finalists, *(row["id"] for row in rows)]
    own_ids = [number for number in dict.fromkeys(node_ids) if nodes.get_node(store, number).run_id == run.id]
    return own_ids[:MOST_NODES]


def _asset(name: str) -> str:
    text = (HERE / "assets" / name).read_text(encoding="utf-8")
    assert "</script" not in text and "</style" not in text, name
    return text


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows the text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
