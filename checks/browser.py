"""Debian's chromium, driven by playwright, and what every page is held to. For checks/test_page.py."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from environments import node_modules, python_of

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LOOKS = [(1280, "light"), (390, "dark")]
"""Widths and themes that each page is checked in; SCREENSHOTS=DIR keeps pictures of all four."""
PATIENCE_MS = 120_000


class Browser:
    """A browser whose pages may complain of nothing."""

    def __init__(self, chromium) -> None:
        self.chromium = chromium
        self.axe = (node_modules("web") / "axe-core/axe.min.js").read_text()

    @contextmanager
    def page(self, width=1280, theme="light", quiet=True, **options):
        """An empty page. `quiet`: at the end nothing may have failed, and no other host been asked."""
        context = self.chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, **options
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        wrong, hosts = [], set()
        page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"{request.url}: {request.failure}"))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        yield page
        asked = {host for host in hosts if not host.startswith("127.0.0.1")} - {""}
        # a poll that is under way when the page is closed did not fail
        left = [one for one in wrong if "ERR_ABORTED" not in one]
        context.close()
        assert not quiet or (not left and not asked), (left, asked)

    def look(self, address, name, ready="main"):
        """Open an address in each of LOOKS: no error, no sideways scrolling, nothing for axe-core to find."""
        shots = os.environ.get("SCREENSHOTS")
        looks = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")] if shots else LOOKS
        for width, theme in looks:
            with self.page(width, theme) as page:
                page.goto(address)
                page.wait_for_selector(ready)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (name, wide, width)
                page.evaluate(self.axe)
                found = page.evaluate("axe.run().then((all) => all.violations)")
                told = [(v["id"], [n["html"][:200] for n in v["nodes"]][:4]) for v in found]
                assert not told, (name, width, theme, json.dumps(told, indent=1))
                if shots:
                    Path(shots).mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=f"{shots}/{name}-{theme}-{width}.png", full_page=True)


@contextmanager
def browser():
    """A Browser."""
    environment = python_of("web").parents[1]
    site.addsitedir(str(next(environment.glob("lib/python3.*/site-packages"))))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # playwright starts it headless, in a new profile
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield Browser(chromium)
        chromium.close()


@contextmanager
def served(runs_dir, *options, port=0):
    """`passagent view` of a directory; its address without the last slash."""
    command = ["passagent", "view", str(runs_dir), "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://"), address
            yield address.partition("?")[0].rstrip("/")
        finally:
            process.terminate()


def answers(address) -> int:
    """The status that an address is answered with; 0: nobody is there."""
    try:
        with urllib.request.urlopen(address) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until(is_so, what) -> None:
    """Wait until it is so."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)
