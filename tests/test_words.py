"""Words: docstrings, comments, messages, help and pages are plain English, without the dialect of the first versions.

Texts that a model reads are excepted by name: they change only with the numbers of a run.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = re.compile(
    r"\b(?:goes on|go on|going on|whoever|nobody|anew|mends?|mended|told|tells|that there is not)\b", re.IGNORECASE
)
INSTEAD = "continue(s); the caller, no caller; again; fix(es); given, named, says; unknown"
PLAIN = {  # words that are never needed, outside of code and quotations -> what to write instead
    r"ours|theirs": "Ramet's, the plugin's, infrastructure's",
    r"besides?": "next to, in addition to, during",
    r"(?:that|those) of": "the noun again",
    r"(?<!ramet[ .-])(?<!eval )(?<!data )play(?:s|ed|ing)?(?!:)": "run(s)",  # the command's name may stay
    r"(?:any|every|no|some)thing else": "otherwise, only, other NOUNS",
    r"(?<!there )is no (?!such|longer)\w+|(?<!there )(?-i:(?:is|are|was|were) none)": "is not a, has no, without",
    r"(?:is|are|was|were) said|put right|let go|by heart|made up for": "is logged, repaired, released",
    r'(?<!f")alone': "only",
    r"(?<!<)whole(?! numbers?)": "complete, intact, all of",
}
CODE = re.compile(r"`[^`]*`|\{[^{}]*\{[^{}]*\}[^{}]*\}|\{[^{}]*\}")  # in backticks, or an expression of an f-string
FOR_MODELS = {  # what the policy or a judge reads
    "core/src/ramet/io/json_values.py": "which is no character",
    "core/src/ramet/helpers/json_calls.py": "goes on after its JSON object",
    "plugins/rewards/src/ramet_rewards/judge_prompts.py": "You are told the accepted answers",
    "plugins/tools_bing/src/ramet_tools_bing/fetch/addresses.py": "this is no address of a page",
}
EARLIER_NAMES = {"core/src/ramet/types/doctor.py": "mend"}  # what checks of earlier plugins pass
SOURCES = [ROOT / "core" / "src" / "ramet", *sorted(ROOT.glob("plugins/*/src"))]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
RECORDS = {"audits.md"}  # quotes what the audits said
PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/README.md")]
    if path.name not in {*RECORDS, "CODE_OF_CONDUCT.md"}
]
NOT_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->|`[^`]*`|^#.*?$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
HEADLESS = re.compile(  # the docstring's subject would be the function's name, or nothing
    r"(?:After|Again|Also|Around|As|At|Because|Before|Between|Both|By|Else|For|From|Here|However|If|In|Inside,?|Into|"
    r"It|Its|Not|Nothing|Of|On|Once|Only|Outside|Over|Past|So|That|These|They|Those|Through|To|Under|Until|Up|Whatever|"
    r"When|Where|Which|While|Whose|With|Within|Without)[ :]"
)
CLAUSE = re.compile(r"(?:What|Whatever|Who|Whoever|Whose) ")  # a clause in the place of the noun


@cache
def texts(path: Path) -> list[tuple[int, str]]:
    """Comments and strings of a file with their lines; names of fields and keys are left out."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_text = token.type == tokenize.STRING and not token.string[1:-1].isidentifier()
        if is_text or token.type == tokenize.COMMENT:
            found.append((token.start[0], token.string))
    return found


def findings(path: Path, words: re.Pattern[str] = FORBIDDEN, quoted: re.Pattern[str] | None = None) -> list[str]:
    """Places of `words` in a file, outside of `quoted`."""
    where = path.relative_to(ROOT).as_posix()
    excepted = [allowed[where] for allowed in (FOR_MODELS, EARLIER_NAMES) if where in allowed]
    found = []
    for line, text in texts(path):
        for phrase in excepted:
            text = text.replace(phrase, "")
        text = quoted.sub("", text) if quoted else text
        found += [f"{where}:{line + text.count(chr(10), 0, m.start())}: {m[0]!r}" for m in words.finditer(text)]
    return found


def sources() -> list[Path]:
    return [path for source in SOURCES for path in sorted(source.rglob("*.py"))]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.relative_to(ROOT).as_posix())
def test_no_word_of_the_former_dialect_is_used(source: Path) -> None:
    files = sorted(source.rglob("*.py"))
    assert files
    assert [finding for path in files for finding in findings(path)] == [], f"instead: {INSTEAD}"


@pytest.mark.parametrize(("words", "instead"), PLAIN.items())
def test_no_word_is_used_that_makes_a_text_slow_to_read(words: str, instead: str) -> None:
    pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    assert [finding for path in sources() for finding in findings(path, pattern, CODE)] == [], f"instead: {instead}"


@pytest.mark.parametrize("words", [FORBIDDEN.pattern, *PLAIN])
def test_pages_are_plain_too(words: str) -> None:
    assert len(PAGES) > 30
    pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    prose = {page: NOT_PROSE.sub(lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8")) for page in PAGES}
    assert [
        f"{page.relative_to(ROOT)}:{1 + text.count(chr(10), 0, m.start())}: {m[0]!r}"
        for page, text in prose.items()
        for m in pattern.finditer(text)
    ] == [], f"instead: {PLAIN.get(words, INSTEAD)}"


@pytest.mark.parametrize(("where", "phrase"), [*FOR_MODELS.items(), *EARLIER_NAMES.items()])
def test_every_exception_is_needed(where: str, phrase: str) -> None:
    assert phrase in (ROOT / where).read_text(encoding="utf-8")


def headless(path: Path, first_words: re.Pattern[str] = HEADLESS) -> list[str]:
    """Docstrings whose first word is neither a verb nor the thing itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in places]
    where = path.relative_to(ROOT).as_posix()
    return [f"{where}:{line}: {text[:40]!r}" for line, text in texts if first_words.match(text)]


def test_a_docstring_begins_with_a_verb_or_with_the_thing() -> None:
    assert [finding for path in sources() for finding in headless(path)] == []
    assert [finding for path in sources() for finding in headless(path, CLAUSE)] == []
