"""Words: docstrings, comments, messages and help are plain English, without the dialect of Ramet's first versions.

Texts that a model reads are excepted by name: they change only with the numbers of a run.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = re.compile(
    r"\b(?:goes on|go on|going on|whoever|nobody|anew|mends?|mended|told|tells|that there is not)\b", re.IGNORECASE
)
INSTEAD = "continue(s); the caller, no caller; again; fix(es); given, named, says; unknown"
FOR_MODELS = {  # what the policy or a judge reads
    "core/src/ramet/rollout/steps/json_calls.py": "goes on after its JSON object",
    "plugins/rewards/src/ramet_rewards/judge_prompts.py": "You are told the accepted answers",
}
EARLIER_NAMES = {"core/src/ramet/types/doctor.py": "mend"}  # what checks of earlier plugins pass
SOURCES = [ROOT / "core" / "src" / "ramet", *sorted(ROOT.glob("plugins/*/src"))]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
HEADLESS = re.compile(  # the docstring's subject would be the function's name, or nothing
    r"(?:After|Again|Also|Around|As|At|Because|Before|Between|Both|By|Else|For|From|Here|However|If|In|Inside,?|Into|"
    r"It|Its|Not|Nothing|Of|On|Once|Only|Outside|Over|Past|So|That|These|They|Those|Through|To|Under|Until|Up|Whatever|"
    r"When|Where|Which|While|Whose|With|Within|Without)[ :]"
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings of a file with their lines; names of fields and keys are left out."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_text = token.type == tokenize.STRING and not token.string[1:-1].isidentifier()
        if is_text or token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(path: Path) -> list[str]:
    where = path.relative_to(ROOT).as_posix()
    excepted = [allowed[where] for allowed in (FOR_MODELS, EARLIER_NAMES) if where in allowed]
    found = []
    for line, text in texts(path):
        for phrase in excepted:
            text = text.replace(phrase, "")
        found += [f"{where}:{line}: {match!r}" for match in FORBIDDEN.findall(text)]
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.relative_to(ROOT).as_posix())
def test_no_word_of_the_former_dialect_is_used(source: Path) -> None:
    files = sorted(source.rglob("*.py"))
    assert files
    assert [finding for path in files for finding in findings(path)] == [], f"instead: {INSTEAD}"


@pytest.mark.parametrize(("where", "phrase"), [*FOR_MODELS.items(), *EARLIER_NAMES.items()])
def test_every_exception_is_needed(where: str, phrase: str) -> None:
    assert phrase in (ROOT / where).read_text(encoding="utf-8")


def headless(path: Path) -> list[str]:
    """Docstrings whose first word is neither a verb nor the thing itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in places]
    where = path.relative_to(ROOT).as_posix()
    return [f"{where}:{line}: {text[:40]!r}" for line, text in texts if HEADLESS.match(text)]


def test_a_docstring_begins_with_a_verb_or_with_the_thing() -> None:
    files = [path for source in SOURCES for path in sorted(source.rglob("*.py"))]
    assert [finding for path in files for finding in headless(path)] == []
