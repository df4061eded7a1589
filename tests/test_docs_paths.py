"""Files, modules and headings that documents name exist.

A document names a file from the root of the repository (`core/src/ramet/config/schema.py`, `bench/gpu/run.sh`), or a
module of the core from its package, perhaps with what it defines (`rollout/scoring`, `rollout/scoring.Scorer`,
`ramet.models.tiny`), or links to a page and a heading of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "ramet"
FOLDERS = ("bench", "core", "docs", "hydra_configs", "plugins", "scripts", "stubs", "tests", r"\.github")
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "*/README.md", "plugins/*/README.md", ".github/**/*.md", "tests/**/README.md")
    for path in ROOT.glob(pattern)
)
SOURCES = sorted(path for path in ROOT.glob("**/*.py") if ".venv" not in path.parts)
# Pages about the core's own modules: here every name with a slash is a file, a module or a metric.
ABOUT_MODULES = ("docs/design.md", "CONTRIBUTING.md")
METRICS = (
    "docs/metrics.md"  # its names are those of metrics, which tests/e2e/test_docs_metrics.py compares with the code
)
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
FILE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w(?![\w*<{{]|/[*<{{])")
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[a-z]\w*(?:/\w+)*(?:/|\.\w+)*")
DOTTED = re.compile(r"ramet(?:\.\w+)+")
LINK = re.compile(r"\]\(([^)\s:]+)\)")


def files_in(text: str, document: str) -> Iterator[str]:
    """Paths from the root of the repository. A page that builds a package names tests of that package too."""
    builds_a_package = "src/ramet_" in text and document.startswith("docs/")
    for path in FILE.findall(text):
        if not (builds_a_package and re.fullmatch(r"tests/\w+\.py", path)):
            yield path


def modules_in(text: str, document: str) -> Iterator[str]:
    """Names between backticks that can only be those of the core's modules, or of rooms: `runs/` is a run's too."""
    for code in CODE.findall(FENCE.sub("", text)):
        if DOTTED.fullmatch(code):
            yield code
        elif (
            document != METRICS
            and NAME.fullmatch(code)
            and "/" in code
            and not re.match(rf"(?:{'|'.join(FOLDERS)})/", code)
        ):
            room, _, rest = code.partition("/")
            if document in ABOUT_MODULES or (rest and (CORE / room).is_dir() and room != "runs"):
                yield code


def module_exists(name: str) -> bool:
    """Of `rollout/scoring.Scorer`, `ramet.models.tiny`, `rollout/group_check.py` or `rollout/`."""
    path, _, defined = name.removesuffix(".py").partition(".") if "/" in name else (name, "", "")
    if "/" not in name:  # ramet.models.tiny.make_tiny_model: as much of it as is a module
        parts = name.split(".")[1:]
        depth = next((n for n in range(len(parts), -1, -1) if _source("/".join(parts[:n])) is not None), 0)
        path, defined = "/".join(parts[:depth]), ".".join(parts[depth:])
    source = _source(path.rstrip("/"))
    return source is not None and all(re.search(rf"\b{word}\b", source) for word in defined.split(".") if word)


@cache
def _source(path: str) -> str | None:
    """The text of a module; of a package that of its `__init__`, which may be missing; None if there is neither."""
    for file in (CORE / f"{path}.py", CORE / path / "__init__.py"):
        if path and file.is_file():
            return file.read_text(encoding="utf-8")
    if not path:
        return (CORE / "__init__.py").read_text(encoding="utf-8")
    return "" if (CORE / path).is_dir() else None


@cache
def _strings() -> frozenset[str]:
    """What the sources of core and plugins have between quotation marks."""
    sources = [*CORE.rglob("*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    return frozenset(
        found for path in sources for found in re.findall(r"[\"']([\w./{}]+)[\"']", path.read_text("utf-8"))
    )


@cache
def _listed_metrics() -> frozenset[str]:
    """Return the names on the page of metrics."""
    return frozenset(re.findall(r"`(\w+(?:/\w+)+)`", (ROOT / METRICS).read_text("utf-8")))


def is_metric(name: str) -> bool:
    """`rollout/masked_share`, `tool/NAME/infra`. Sources may make the first part: `f"{prefix}/masked_share"`."""
    first, _, rest = name.partition("/")
    if name in _listed_metrics():
        return True
    pattern = re.compile(rf"(?:{first}|\{{\w+\}})/{rest}")
    if any(part.isupper() for part in name.split("/")):
        return True
    return bool(rest) and any(pattern.fullmatch(text) for text in _strings() if "/" in text)


def is_entry_point_group(name: str) -> bool:
    """`ramet.commands` and its like look like modules."""
    return name.startswith("ramet.") and name in _strings()


def headings(document: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def missing(text: str, document: str) -> list[str]:
    """What a page names and the repository does not have. `document`: its path from the root."""
    folder = (ROOT / document).parent
    found = [path for path in files_in(text, document) if not (ROOT / path).exists()]
    found += [
        name
        for name in modules_in(text, document)
        if not (module_exists(name) or is_metric(name) or is_entry_point_group(name))
    ]
    for link in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = link.partition("#")
        target = (folder / path) if path else ROOT / document
        if not target.exists() or (anchor and anchor not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    assert not missing(document.read_text(encoding="utf-8"), str(document.relative_to(ROOT)))


def test_pages_that_sources_name_exist() -> None:
    named = {
        (str(file.relative_to(ROOT)), page)
        for file in SOURCES
        for page in re.findall(r"(?<![\w/])docs/\w+\.md", file.read_text(encoding="utf-8"))
    }
    assert named and not [one for one in named if not (ROOT / one[1]).is_file()]


@pytest.mark.parametrize(
    "text",
    [
        "see `core/src/ramet/nowhere.py`",
        "`bench/gpu/nothing.sh`",
        "run scripts/nothing.sh",
        "`rollout/nowhere`",
        "`rollout/scoring.Nothing`",
        "`ramet.models.nowhere`",
        "[page](nowhere.md)",
        "[part](sft.md#no-such-heading)",
    ],
)
def test_a_name_of_nothing_is_found(text: str) -> None:
    assert len(missing(text, "docs/design.md")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`core/src/ramet/errors.py`, `core/tests/`, `hydra_configs/experiment/`",
        "`plugins/*/src`, `core/src/ramet/<room>/`, `plugins/{arpo,rewards}/`",
        "`errors.ConfigError`, `types/`",
        "`ramet.testing`, `ramet.models.tiny.make_tiny_model`",
        "`rollout/masked_share`, `tool/NAME/infra`",
        "[part](sft.md#several-devices), [web](https://docs/nowhere.md)",
        "```\ntools=[a](b)\n```",
    ],
)
def test_names_of_files_modules_metrics_and_pages_are_told_apart(text: str) -> None:
    assert not missing(text, "docs/design.md")
