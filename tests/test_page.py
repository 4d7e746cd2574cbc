"""The page: every link leads somewhere, hostile text is inert, strangers are refused."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import sqlite3
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tiny_search
from starlette.testclient import TestClient

from passagent.cli.groups import PageOptions
from passagent.cli.look_verbs import report
from passagent.data.bench.results import FILE, Results, Row
from passagent.errors import InfrastructureError, UsageError
from passagent.option_groups import checked
from passagent.store import Store, nodes, runs, sessions
from passagent.store.nodes import keep_profile
from passagent.view import charts, tree
from passagent.view.charts import Made
from passagent.view.page.app import Access, create_app, serve
from passagent.view.page.rendering import one_file

ORIGIN = "http://127.0.0.1:8640"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A runs directory with a finished run of two islands."""
    from passagent.cli import running

    place = tmp_path_factory.mktemp("page")
    task = tiny_search.write_task(place / "task")
    running.run(
        str(task),
        {"settings": tiny_search.settings(4, 2, 1), "runs_dir": str(place / "runs"), "new": True},
        True,
        parts=tiny_search.parts(),
    )
    return place / "runs"


@pytest.fixture
def copy(made, tmp_path):
    """The same, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def client(runs_dir, access=None):
    return TestClient(create_app(Path(runs_dir), access or Access()), base_url=ORIGIN, follow_redirects=False)


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.found, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.ids.add(dict(attrs).get("id"))


def newest(store):
    return runs.find_run(store, "last")


def crawl(page, start="/"):
    """Every page that links lead to from `start`, and its text."""
    from urllib.parse import urljoin, urlsplit

    seen, todo = {}, [start]
    while todo:
        address = todo.pop()
        answer = page.get(address)
        assert answer.status_code == 200, (address, answer.text[-400:])
        seen[address] = answer
        if "html" not in answer.headers["content-type"]:
            continue
        for _, attributes in Tags(answer.text).found:
            for name in ("href", "src", "hx-get"):
                # links of a part are seen from its page
                at = re.sub("/(now|figures)$", "", address)
                link = urljoin(ORIGIN + at, attributes.get(name) or "")
                assert link.startswith(ORIGIN), link
                path = link.removeprefix(ORIGIN).partition("#")[0]
                if attributes.get(name) and path not in [*seen, *todo] and urlsplit(path).path != "/":
                    todo.append(path)
    return seen


def test_every_link_leads_to_a_page_without_inline_scripts_or_styles(made):
    seen = crawl(client(made))
    assert "curated" in seen["/hints"].text and "not known yet" in seen["/hints"].text
    kinds = ("/run/", "/node/", "/tree", "/episode/", "/task/", "/diff/", "/figures", "/hints")
    assert all(any(kind in address for address in seen) for kind in kinds)
    for address, answer in seen.items():
        assert "default-src 'self'" in answer.headers["content-security-policy"], address
        if "html" in answer.headers["content-type"]:
            for tag, attributes in Tags(answer.text).found:
                assert not [name for name in attributes if name.startswith("on") or name == "style"], address
                assert tag != "style" and (tag != "script" or attributes.get("src")), address


def test_a_page_is_sent_again_only_when_it_changed(copy):
    page = client(copy)
    with Store.open(copy, create=False) as store:
        run = newest(store).id
    address = f"/run/{run}/now"
    tag = page.get(address).headers["etag"]
    assert page.get(address, headers={"If-None-Match": tag}).status_code == 304
    with Store.open(copy) as store:  # a commit that this page does not show
        store.execute("CREATE TABLE other (x)", {})
    assert page.get(address, headers={"If-None-Match": tag}).status_code == 304
    with Store.open(copy) as store:
        store.execute("UPDATE nodes SET note = 'Seen at once.' WHERE id = (SELECT max(id) FROM nodes)", {})
    again = page.get(address, headers={"If-None-Match": tag})
    assert again.status_code == 200 and "Seen at once." in again.text


def test_death_of_a_process_and_a_replaced_database_are_seen(copy):
    page = client(copy)
    with Store.open(copy) as store:
        run = newest(store).id
        lock = sessions.lock_run(store, run)
        sessions.begin(store, run)

    def shown(tag=""):
        answer = page.get(f"/run/{run}/now", headers={"If-None-Match": tag})
        return answer.text, answer.headers.get("etag")

    text, tag = shown()
    assert "running" in text and shown(tag) == ("", tag)
    os.close(lock)  # as the kernel does for a dead process
    assert "interrupted" in shown(tag)[0]
    (copy / "passagent.db").rename(copy / "old.db")
    assert "holds no runs" in shown(tag)[0]
    shutil.copy(copy / "old.db", copy / "passagent.db")
    assert "interrupted" in shown(tag)[0]


def test_nothing_can_be_written_through_a_store_that_is_opened_to_look(copy):
    with (
        Store.open(copy, create=False, to_look=True) as store,
        pytest.raises(UsageError, match="cannot be written"),
    ):
        store.execute("UPDATE runs SET seed = 7", {})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "holds no runs"),
        (b"", "holds nothing yet"),
        (b"SQLite format 3\x00 and then no more", "not a healthy SQLite database"),
        (b"x" * 9000, "not a healthy SQLite database"),
        ("CREATE TABLE theirs (x)", "a database of another program"),
    ],
)
def test_a_place_without_runs_says_what_it_is(tmp_path, content, told):
    path = tmp_path / "passagent.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        with sqlite3.connect(path) as connection:
            connection.execute(content)
        connection.close()
    for address in ("/", "/run/x", "/node/1", "/hints"):
        answer = client(tmp_path).get(address)
        assert answer.status_code == 200 and told in answer.text
    Store.open(tmp_path / "new").close()
    assert "No runs" in client(tmp_path / "new").get("/").text


def test_what_an_address_adds_changes_nothing_else(made):
    page = client(made)
    for more in ("?store=x", "?number=2", "?unknown=1&first=0"):
        assert "Node 1</h1>" in page.get(f"/node/1{more}").text


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("/node/999", "no such node"),
        ("/run/nix", "no such run"),
        ("/run/RUN/episode/999", "has no episode 999"),
        ("/run/RUN/episode/x", "not a place in a list"),
        ("/task/nix", "on such a task"),
        ("/node/1/plan", "no plan was kept"),
        ("/run/RUN/tree?before=x", "not a place in a list"),
        ("/assets/../page.py", ""),
        ("/assets/..%2F..%2Fapp.py", ""),
    ],
)
def test_what_is_not_there_is_told(made, address, told):
    with Store.open(made, create=False) as store:
        answer = client(made).get(address.replace("RUN", newest(store).id))
    assert answer.status_code == 404 and told in answer.text


def test_hostile_text_is_inert(copy):
    evil = "</script><script>alert(1)</script>\x1b[31m\u202eevil\u2066 \ud800 <img src=x onerror=alert(1)>"
    with Store.open(copy) as store:
        node = nodes.get_node(store, 1)
        files = nodes.get_files(store, node) | {"evil.py": evil * 3, "big.txt": "A" * 5_000_000}
        key = store.keep_files(files)
        store.execute("UPDATE nodes SET candidate_key = :key WHERE id = 1", {"key": key})
        told = json.dumps({"label": "wrong_result", "text": evil, "graphs": []})
        store.execute(
            "UPDATE nodes SET note = :note, diagnosis = :told WHERE id = 1",
            {"note": evil.replace("\ud800", ""), "told": told},
        )
        keep_profile(store, node.run_id, key, False, evil.replace("\ud800", ""), "{}")
        store.execute("UPDATE nodes SET as_score = 9e999 WHERE id = 2", {})
        store.execute("UPDATE runs SET task = :note", {"note": evil.replace("\ud800", "")})
        run = newest(store)
        texts = [one_file(store, run)]
    page = client(copy)
    own = f"run/{run.id}"
    addresses = ("", own, f"{own}/figures", f"{own}/tree", "node/1", "node/2/diff/1")
    texts += [page.get(f"/{address}").text for address in addresses]
    assert sum("evil" in text for text in texts) > 4
    for text in texts:
        assert not set(text) & {"\x1b", "\u202e", "\u2066", "\ud800"}
        assert "<script>alert" not in text and "<img" not in text
        assert len(text) < 1_500_000
        assert not re.search(r' (?:d|x|y|cx|cy)="[^"]*(?:nan|inf)', text)
    assert "<h2>Profile</h2>" in page.get("/node/1").text
    assert "4,800,000 more characters are not shown" in page.get("/node/1").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8640"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "["}, 421),
        ({"Host": "named.example"}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ORIGIN}, 200),
    ],
)
def test_requests_of_other_sites_are_refused(made, headers, status):
    page = client(made, Access(hosts=frozenset({"named.example"})))
    assert page.get("/", headers=headers).status_code == status


def test_a_token_is_asked_for_and_leaves_the_address(made):
    page = client(made, Access(token="secret"))
    for address in ("/", "/?token=", "/?token=Secret", "/assets/page.css?token=%ff"):
        assert page.get(address).status_code == 403
    assert page.get("/", headers={"Cookie": "passagent_token=wrong"}).status_code == 403
    entrance = page.get("/run/x/tree?before=1&token=secret&more=2")
    assert (entrance.status_code, entrance.headers["location"]) == (303, "./tree?before=1&more=2")
    assert {"HttpOnly", "SameSite=strict"} <= set(entrance.headers["set-cookie"].split("; "))
    assert page.get("/").status_code == 200  # by the cookie


def test_nothing_can_be_changed(made):
    page = client(made)
    assert page.post("/", headers={"Origin": ORIGIN}).status_code == 405


def test_one_file_needs_nothing_else(made):
    with Store.open(made, create=False) as store:
        text = one_file(store, newest(store))
    assert str(made) not in text  # it is for others
    tags = Tags(text)
    for tag, attributes in tags.found:
        for name in ("href", "src", "action"):
            link = attributes.get(name, "data:,")
            assert link == "data:," or link[1:] in tags.ids, (tag, link)
        assert not {"hx-get", "style"} & attributes.keys()
    [policy] = [a["content"] for t, a in tags.found if a.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("script", "style"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_report_writes_page_and_pictures(made, tmp_path):
    page, pictures = tmp_path / "run.html", tmp_path / "pictures"
    told = report("last", str(page), str(pictures), str(made)).data
    drawn = {f"{pictures}/{name}.svg" for name in ("best", "islands", "tree")}
    assert (
        told["left_out"] == [] and set(told["files"]) == {str(page), *drawn} and all(told["files"].values())
    )
    assert "<svg" in (pictures / "tree.svg").read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        report("last", None, str(tmp_path / "file" / "below"), str(made))
    with pytest.raises(UsageError, match="--html FILE or --pictures DIR"):
        report("last", None, None, str(made))


def candidates_of(scores, parent=None):
    return [
        Made(i, parent, i % 2, "ok" if score else "mismatch", score, False)
        for i, score in enumerate(scores, 1)
    ]


def test_the_course_keeps_records_and_extremes():
    scores = [1.0, None, 0.9, 1.5, *(1 + (i * 7919 % 400) / 1000 for i in range(20_000)), 2.0]
    found = charts.course(candidates_of(scores))
    assert [point.as_score for point in found.best] == [1.0, 1.5, 2.0]
    assert found.nodes == len(scores) and found.statuses["mismatch"] == 1 and found.newest["mismatch"] == 2
    assert len(found.points) <= 2 * charts.POINTS
    shown = {point.as_score for point in found.points}
    assert {min(filter(None, scores)), 2.0} <= shown
    drawn = charts.drawn(charts.best_so_far(found, {"value": 2.0, "low": 1.9, "high": 2.1}))
    best = next(one for one in drawn["lines"] if one["line"].label == "best so far")
    assert [mark["node"] for mark in best["marks"]] == [1, 4, len(scores)] and best["path"].count("V") == 3
    assert all(len(drawn[axis]) >= 3 for axis in ("xticks", "yticks"))


def test_the_tree_shows_the_lineage_of_the_best_whatever_else_is_there():
    first = candidates_of([1.9] * 200)
    chain = [Made(201 + i, 200 if i == 0 else 200 + i, 0, "ok", 0.5, False) for i in range(30)]
    crowd = [Made(300 + i, 200, 0, "ok", 1.0, False) for i in range(500)]
    found = tree.layout([*first, *chain, *crowd], best=230)
    lineage = [one.node.id for one in found.placed if one.is_lineage]
    assert lineage == [200, *range(201, 231)]
    for depth in range(1, found.depth + 1):
        level = [one.x for one in found.placed if one.depth == depth]
        assert len(level) <= tree.LEVEL and level == sorted(level) and 0 < level[0] <= level[-1] < 1
        assert all(b - a > 0.9 / (tree.LEVEL + 1) for a, b in itertools.pairwise(level))
    [root] = [one for one in found.placed if one.node.id == 200]
    drawn = sum(one.depth > 1 for one in found.placed)
    assert root.hidden == 530 - drawn


def test_a_port_that_is_taken_is_told(made):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="port 0 takes"):
        serve(made, checked(PageOptions, {"port": taken.getsockname()[1]}))


def test_a_locked_or_damaged_store_is_told_in_a_line(copy):
    with sqlite3.connect(copy / "passagent.db") as connection:
        connection.execute("UPDATE files SET content = x'00'")
    connection.close()
    answer = client(copy).get("/node/1")
    assert answer.status_code == 500 and "are damaged" in answer.text
    with Store.open(copy, create=False) as store, pytest.raises(InfrastructureError, match="damaged"):
        nodes.get_files(store, nodes.get_node(store, 1))


def test_looking_at_a_benchmark_leaves_the_line_that_is_being_written(tmp_path):
    row = Row(
        task="t", task_key="k", compiler="eager", subject="eager", identity={}, at="", error="no device"
    )
    line = json.dumps(row.model_dump(mode="json")) + "\n"
    (tmp_path / FILE).write_text(line * 2 + line[:20])
    assert [one.error for one in Results(tmp_path).rows.values()] == [
        "no device"
    ]  # of equal keys the last counts
    assert (tmp_path / FILE).read_text() == line * 2 + line[:20]
    (tmp_path / FILE).write_text("{}\n")
    with pytest.raises(UsageError, match="not a result of passagent bench"):
        Results(tmp_path)
