"""Hooks of mkdocs: what the site has besides the pages of docs/.

They add the generated reference, and the READMEs and other pages of the repository that documents link to. Links that
lead out of docs/ are rewritten, so that one page works in the repository's file view and in the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from llms import index_text
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages of the repository outside docs/ -> their place in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/bench.md",
    "tests/golden/values/README.md": "project/golden.md",
} | {f"{folder}/README.md": f"packages/{name}.md" for name, folder in reference.PACKAGES.items()}
HOMES = {site: path for path, site in OUTSIDE.items() if site != "index.md"}
FENCE = re.compile(r"^( *)```[^\n]*\n.*?^\1``` *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s:]+)(\))")
INDENTED = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)
MARK = re.compile(r"^ *<!-- (?:run|docs-test|needs|pattern|output|before|file)\b.*-->\n", re.MULTILINE)  # see blocks.py
REFERENCE = "<!-- The site has the generated reference here: `make docs`. -->"  # in docs/index.md
PLAN = re.compile(r"^```(?:plan|time) [^\n]*$", re.MULTILINE)  # tables that a test compares: the language is a command

MARKDOWN: dict[str, str] = {}  # page -> its text, as `on_post_build` writes it


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the generated parts of the navigation; make anchors as the repository's file view makes them."""
    config.nav = [_filled(entry) for entry in config.nav or ()]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and those of the repository outside docs/."""
    for uri, text in reference.pages().items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in HOMES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for uri, text in reference.reports().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that lead out of docs/, and what this Markdown reads otherwise than the file view does."""
    uri = page.file.src_uri
    path = HOMES.get(uri, f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target:
            return match[0]
        place = _place(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), config, files)
        link = posixpath.relpath(place, posixpath.dirname(uri) or ".")
        return f"{match[1]}{link}{f'#{anchor}' if anchor else ''}{match[3]}"

    if uri == "index.md":
        markdown = markdown.replace(REFERENCE, reference.links())
    if not uri.startswith("reference/"):
        markdown = _outside_fences(PLAN.sub("```text", MARK.sub("", markdown)), lambda text: LINK.sub(rewritten, text))
    if "\n::: " not in markdown:  # docstrings are in the HTML alone
        MARKDOWN[uri] = markdown
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`, the index for language models, next to the pages, and the Markdown of each page."""
    site = Path(config.site_dir)
    for uri, text in MARKDOWN.items():
        (site / uri).write_text(text, encoding="utf-8")
    summary = config.site_description or ""
    index = index_text(config.nav or [], config.site_name, summary, markdown=MARKDOWN)
    (site / "llms.txt").write_text(index, encoding="utf-8")


def slug(title: str, separator: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def _filled(entry: Any) -> Any:
    """Return an entry of the navigation with the pages that `GENERATED name` stands for."""
    if isinstance(entry, str):
        return entry
    ((title, inside),) = entry.items()
    if isinstance(inside, list):
        return {title: [_filled(one) for one in inside]}
    name = inside.removeprefix("GENERATED ")
    return entry if name == inside else {title: reference.NAVIGATION[name]()}


def _place(path: str, config: MkDocsConfig, files: Files) -> str:
    """Return where the site has this file of the repository; a file that no page shows is copied."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in OUTSIDE:
        return OUTSIDE[path]
    place = f"files/{path}"
    if place.endswith(".md"):
        raise PluginError(f"a page links to {path}, which is not a page of the site: add it to OUTSIDE of {__file__}")
    if place not in files.src_uris and (ROOT / path).is_file():
        files.append(File.generated(config, place, content=(ROOT / path).read_bytes()))
    return place


def _outside_fences(markdown: str, change: Any) -> str:
    """Apply `change` to the text between code blocks, and indent lists by four columns, as this Markdown needs it."""
    parts, end = [], 0
    for match in FENCE.finditer(markdown):
        parts.append(INDENTED.sub("    ", change(markdown[end : match.start()])))
        shift = " " * (4 - len(match[1])) if match[1] else ""
        parts.append(re.sub(r"^(?=.)", shift, match[0], flags=re.MULTILINE))
        end = match.end()
    return "".join([*parts, INDENTED.sub("    ", change(markdown[end:]))])
