"""The site of docs/: built strictly, and looked at in a browser at 400 and 1600 px."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from normgen.report.readme import ROOT
from tests.browser import Visit, answered, needs_browser

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed (pip install 'normgen[docs]')",
)
WIDTHS = (400, 1600)
# A page sends what its script found to the server.
SENDING = """<!doctype html><body><script>
(async () => {{ {script} }})().catch((error) => String(error)).then((found) =>
  fetch("/answer", {{ method: "POST", body: JSON.stringify(found) }}));
</script></body>"""
# For each page and width: how far it reaches beyond the window, its smallest text, and where it asked for files.
LOOK = """
const found = {{}};
for (const width of {widths}) {{
  for (const page of {pages}) {{
    const frame = document.createElement("iframe");
    frame.style = `width: ${{width}}px; height: 900px; border: 0`;
    frame.src = page;
    document.body.append(frame);
    await new Promise((loaded) => frame.addEventListener("load", loaded, {{ once: true }}));
    const seen = frame.contentDocument, top = frame.contentWindow;
    const texts = [...seen.querySelectorAll("article p, article code, article td")];
    const scrolls = (node) => !/visible|clip/.test(top.getComputedStyle(node).overflowX);
    const inside = (node) => node.matches("article") ? false : scrolls(node) || inside(node.parentElement);
    const free = [...seen.querySelectorAll("article *")].filter((node) => !inside(node.parentElement));
    found[`${{page}} at ${{width}}`] = {{
      title: seen.querySelector("article h1")?.textContent ?? "",
      beyond: Math.max(...free.map((node) => node.getBoundingClientRect().right)) - seen.documentElement.clientWidth,
      smallest: Math.min(...texts.map((node) => parseFloat(top.getComputedStyle(node).fontSize))),
      unread: seen.querySelector("article").textContent.includes("```"),
      hosts: [...new Set(top.performance.getEntriesByType("resource").map((one) => new URL(one.name).host))],
    }};
    frame.remove();
  }}
}}
return found;
"""


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))


@dataclass(frozen=True, kw_only=True)
class Site:
    folder: Path
    url: str
    answers: queue.Queue[Any]

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def ask(self, script: str, folder: Path, page: str = "") -> Visit:
        """What a script finds, in an empty page or at the end of a page of the site."""
        sending = SENDING.format(script=script)
        text = (self.folder / page).read_text().replace("</body>", sending) if page else sending
        (self.folder / "asking.html").write_text(text)
        try:
            return answered(f"{self.url}/asking.html", self.answers, folder=folder, width=1700)
        finally:
            (self.folder / "asking.html").unlink()

    @property
    def pages(self) -> list[str]:
        found = [*self.folder.glob("*.html"), *self.folder.glob("ladders/*.html")]
        return sorted(str(page.relative_to(self.folder)) for page in found if page.stem != "404")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; what is posted goes into a queue."""

    def __init__(self, *given: Any, answers: queue.Queue[Any], **named: Any) -> None:
        self.answers = answers
        super().__init__(*given, **named)

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    answers: queue.Queue[Any] = queue.Queue()
    handler = functools.partial(Handler, directory=str(folder), answers=answers)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Site(folder=folder, url=f"http://127.0.0.1:{server.server_port}", answers=answers)
        server.shutdown()
        thread.join()


def test_every_page_of_the_docs_is_a_page_of_the_site(site: Site) -> None:
    docs = ROOT / "docs"
    expected = {str(page.relative_to(docs).with_suffix(".html")) for page in docs.rglob("*.md")}
    outside = {"index.html", "contributing.html", "changelog.html", "security.html", "examples.html"}
    assert set(site.pages) == expected | outside


def test_every_file_that_a_page_links_to_is_in_the_site(site: Site) -> None:
    assert "written_program" in (site.folder / "source/normgen/pipeline.py.html").read_text()
    for file in ("normgen/verify/error_model.py", "examples/layernorm.cu", "examples/custom_norm/power_norm.toml"):
        assert (site.folder / "source" / f"{file}.html").is_file(), file
    assert (site.folder / "prices.svg").read_text().startswith("<svg")


def test_no_page_takes_a_script_a_style_or_a_font_from_elsewhere(site: Site) -> None:
    taken = re.compile(
        r"""<(?:script|img|iframe)[^>]*?src=["']?(?:https?:)?//[^>]*>|<link[^>]*?href=["']?(?:https?:)?//[^>]*>"""
    )
    assert taken.search('<script src="https://example.invalid/a.js">')
    for page in site.folder.rglob("*.html"):
        assert not (found := taken.search(page.read_text())), f"{page.name}: {found and found[0]}"
    for style in site.folder.rglob("*.css"):
        assert "url(http" not in style.read_text(), style.name


@needs_browser
def test_pages_are_readable_at_400_and_1600_px_and_ask_no_other_host(site: Site, tmp_path: Path) -> None:
    seen = site.ask(LOOK.format(widths=json.dumps(WIDTHS), pages=json.dumps(site.pages)), tmp_path)
    assert seen.console == ()
    assert len(seen.probe) == len(WIDTHS) * len(site.pages), seen.probe
    for page, found in seen.probe.items():
        assert found["title"], page
        assert found["beyond"] <= 0, page
        assert found["smallest"] >= 11, page
        assert not found["unread"], f"{page} shows a fence that was not read"
        assert found["hosts"] == [site.host], page


@needs_browser
def test_an_error_a_request_and_a_wide_line_would_be_seen(site: Site, tmp_path: Path) -> None:
    page = (site.folder / "faq.html").read_text()
    planted = "<img src='http://example.invalid/a.png'><p style='width: 3000px'>x</p><script>throw 'planted'</script>"
    (site.folder / "planted.html").write_text(page.replace("<h1", f"{planted}<h1", 1))
    seen = site.ask(LOOK.format(widths=json.dumps(WIDTHS), pages='["planted.html"]'), tmp_path)
    (site.folder / "planted.html").unlink()
    assert sum("planted" in line for line in seen.console) == 2, seen.console
    for found in seen.probe.values():
        assert "example.invalid" in found["hosts"]
        assert found["beyond"] > 1000


@needs_browser
def test_the_search_finds_a_knob(site: Site, tmp_path: Path) -> None:
    script = """const asked = document.querySelector(".md-search__input");
      const found = () => [...document.querySelectorAll("a.md-search-result__link")].map((one) => one.href);
      for (let i = 0; i < 100 && !found().length; i++) {
        asked.value = "welford";
        asked.dispatchEvent(new Event("focus"));
        asked.dispatchEvent(new KeyboardEvent("keyup"));
        await new Promise((later) => setTimeout(later, 100));
      }
      return found();"""
    seen = site.ask(script, tmp_path, "index.html")
    assert any("knobs.html" in link for link in seen.probe), seen.probe


def test_a_link_to_nothing_fails_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for words, told in {"[a](nowhere.md)": "nowhere.md", "[a](b.md#none)": "#none"}.items():
        (docs / "index.md").write_text(f"# A\n\n{words}\n")
        (docs / "b.md").write_text("# B\n")
        settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
        kept = [line for line in settings.splitlines() if not line.startswith(("hooks:", "extra_css:"))]
        (tmp_path / "mkdocs.yml").write_text("\n".join(kept))
        done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
        assert done.returncode != 0, words
        assert told in done.stdout + done.stderr
