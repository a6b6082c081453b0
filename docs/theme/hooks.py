"""What mkdocs does beside its own: the pages outside docs/, and links to files of the repository.

README, CONTRIBUTING, CHANGELOG, SECURITY and the index of the examples become pages. A link to any other file of the
repository leads to a page that shows it, so that the site is whole by itself; a link to what is not there is an error.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments.formatters.html import HtmlFormatter

ROOT = Path(__file__).resolve().parents[2]
PAGES = {  # of the repository -> of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
ORIGINS = {site: repository for repository, site in PAGES.items()}
LANGUAGES = {
    ".py": "python",
    ".ipynb": "python",
    ".toml": "toml",
    ".cu": "cuda",
    ".cuh": "cuda",
    ".json": "json",
    ".c": "c",
    ".cpp": "cpp",
}
LINK = re.compile(r"(^```.*?^```$)|\]\(([^)\s#]+)(#[^)]*)?\)", re.DOTALL | re.MULTILINE)
OUTSIDE = ("http://", "https://", "mailto:")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = _slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for repository, site in PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / repository)))
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    files.append(File.generated(config, "theme/pygments.css", content=colours))
    wanted: set[str] = set()
    for page in files.documentation_pages():
        text = Path(page.abs_src_path or "").read_text(encoding="utf-8")
        for _, link, _ in LINK.findall(text):
            if link and not link.startswith(OUTSIDE):
                wanted.add(_of_repository(page.src_uri, link))
    for path in sorted(wanted):
        if path not in PAGES and not path.startswith("docs/"):
            shown = File.generated(config, _shown(path), content=_text(path), inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(shown)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    def linked(match: re.Match[str]) -> str:
        code, link, anchor = match.groups()
        if code is not None or link.startswith(OUTSIDE):
            return match[0]
        aim = _site_path(_of_repository(page.file.src_uri, link))
        here = PurePosixPath(page.file.src_uri).parent
        return f"]({os.path.relpath(aim, here)}{anchor or ''})"

    text = markdown if page.file.src_uri.startswith("source/") else LINK.sub(linked, markdown)
    return text.replace("<details>", '<details markdown="1">')  # what is inside is Markdown, as on GitHub


def _slug(title: str, separator: str) -> str:
    """As GitHub's, but for titles that begin with a digit: the theme's script takes anchors for selectors."""
    plain = slugify(title, separator)
    return f"_{plain}" if plain[:1].isdigit() else plain


def _of_repository(page: str, link: str) -> str:
    """The path in the repository that a link of a page leads to. Raises PluginError where nothing is."""
    origin = PurePosixPath(ORIGINS.get(page, f"docs/{page}")).parent
    path = os.path.normpath(origin / link)
    if not (ROOT / path).exists():
        raise PluginError(f"{page}: there is no {link}")
    return path


def _site_path(path: str) -> str:
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else _shown(path)


def _shown(path: str) -> str:
    return f"source/{path}.md"


def _text(path: str) -> str:
    """A page with a file of the repository, or with the names of a folder."""
    file = ROOT / path
    title = f"# {path}\n\n"
    if file.is_dir():
        return title + "\n".join(f"* `{one.name}`" for one in sorted(file.iterdir()) if not one.name.startswith("."))
    fence, text = "`" * 5, file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        text = "\n".join(_cell(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    language = LANGUAGES.get(file.suffix, "text")
    return f"{title}{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _cell(kind: str, text: str) -> str:
    """A cell of a notebook in a program: its words as comments."""
    return f"{text}\n" if kind == "code" else "".join(f"# {line}\n" for line in text.splitlines())
