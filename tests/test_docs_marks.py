"""Every command of the documents has a mark: it is run here or by a named test, or its keys and options are checked."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet.cli.commands import COMMANDS
from ramet.cli.terminal import asked_parser
from ramet.config.compose import compose
from ramet.config.keys import JOBS
from ramet.config.sections import without_model
from ramet.config.trust import trusting
from ramet.errors import RametError
from ramet.plugins.extensions import COMMANDS as EXTENSIONS
from ramet.plugins.extensions import extension

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "scripts" / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


blocks = load("blocks")
PAGES = blocks.pages()
BLOCKS = [block for page in PAGES for block in blocks.blocks(page)]
RUN = [page for page in PAGES if any(block.mark == "run" for block in blocks.blocks(page))]
CHECKED = [block for block in BLOCKS if block.mark == "pattern" or block.mark.startswith("needs ")]
LINES = [
    (block.where, line)
    for block in CHECKED
    for line, shown in block.commands()
    if not shown.startswith("error:") and re.search(r"(?<![\w-])ramet ", line)
]
RECORD = ROOT / "docs" / "docs_test.json"
# Recipes and components of the reader's own, which the page describes or has another command write.
OWN = re.compile(r"experiment=(?:…|mine|qwen)|.*(?:\b(?:guess|my_reward|my_tool|tiered|weather)\b|=\[mine\]).*")


def test_every_block_of_commands_has_a_mark() -> None:
    assert [block.where for block in BLOCKS if not block.mark and not block.is_data] == []


def test_a_test_that_a_mark_names_reads_the_page() -> None:
    wrong = []
    for block in BLOCKS:
        if block.mark.startswith("run: "):
            test = ROOT / block.mark.removeprefix("run: ")
            if not test.is_file() or block.page.name not in test.read_text(encoding="utf-8"):
                wrong.append(block.where)
    assert not wrong


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    ran = list(blocks.run_blocks(blocks.blocks(page), "run", tmp_path / "page"))
    assert ran
    assert "\n".join(f"{block.where}\n{problem}" for block, problem in ran if problem) == ""


@pytest.mark.parametrize(("where", "line"), LINES, ids=[f"{where}-{line[:40]}" for where, line in LINES])
def test_a_command_that_is_not_run_composes_or_parses(where: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in ramet_commands(line):
        chosen = {name for word in words for name in re.findall(r"^tools\.(\w+)\.", word)} if "…" in words else ()
        if chosen and not any(word.startswith("tools=") for word in words):
            words.append(f"tools=[{','.join(chosen)}]")
        name, *words = [word for word in words if word != "…" and not OWN.fullmatch(word)]
        check(name, [word.replace("…", "x") for word in words], line)


def ramet_commands(line: str) -> list[list[str]]:
    """Return the words after `ramet` of each command of a line, also where another program starts it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            parts.append([])
        elif word == "ramet" or word.endswith("/ramet"):  # the last one: an image may have the name too
            parts[-1] = ["ramet"]
        else:
            parts[-1].append(word)
    return [part[1:] for part in parts if part[:1] == ["ramet"] and part[1:] and part[1] != "."]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("ramet train --dryrun", "--dryrun"),
        ("X=1 ramet sft sft.epochs=1 --resume x", "--resume"),
        ("ramet eval bare", "bare"),
        ("ramet train -m policy.lrr=1,2", "lrr"),
        ("docker run -v a:b ramet ramet train trains.steps=1", "trains"),
        ("torchrun --no-python ramet sft --epochs 2", "--epochs"),
        ("echo 1 | ramet tool call python - tools.python.timeouts=1", "timeouts"),
        ("ramet tool run python 1", "run"),
        ("cd ramet && ramet report --outt x", "--outt"),
    ],
)
def test_the_check_finds_a_wrong_word(line: str, wrong: str) -> None:
    [(name, *words)] = ramet_commands(line)
    with pytest.raises((RametError, AssertionError), match=wrong):
        check(name, words, line)


def check(name: str, words: list[str], line: str) -> None:
    """Compose the configuration of a job, or parse the arguments of another command."""
    if name not in COMMANDS:
        assert callable(extension(EXTENSIONS, name, ()).load())
        return
    if "--trust-recipe" in words:  # read before the command
        at = words.index("--trust-recipe")
        words = [*words[:at], *words[at + 2 :]]
    run: Any = COMMANDS[name].run
    module = {("eval", "import"): "eval_import", ("data", "from-rollouts"): "data_rollouts"}.get((name, *words[:1]))
    if module is not None:
        run, words = importlib.import_module(f"ramet.cli.{module}").run, words[1:]
    parser = asked_parser(run)
    assert parser is not None
    options = parser.parse_intermixed_args(words[: words.index("--")] if "--" in words else words)
    if name == "tool":
        overrides = [word for word in options.words if re.match(r"[\w.]+=", word)]
        assert options.what in ("call", "serve"), options.what
        has_own = OWN.fullmatch(line) or any(".use=" in word for word in overrides)
        names = options.words[:1] if options.what == "call" else [word for word in options.words if "=" not in word]
        chosen = [] if has_own else [f"tools=[{','.join(names)}]"]
        assert compose(without_model([*chosen, *overrides]), job="tool").job == "tool"
    elif name in JOBS and module is None and hasattr(options, "overrides"):
        bare = [word for word in options.overrides if "=" not in word]
        assert options.help or not bare, bare
        several = getattr(options, "multirun", False)
        overrides = [re.sub(r"^([^\[,]*),.*", r"\1", word) if several else word for word in options.overrides]
        with trusting((ROOT / "hydra_configs" / "experiment").glob("*.yaml")):  # Ramet may be installed from elsewhere
            assert compose(without_model([word for word in overrides if "=" in word]), job=name).job == name


def test_numbers_and_what_is_left_out_are_not_compared() -> None:
    assert blocks.same_output("step 1  loss 0.5\n…\ndone in … s\n", "step 20 loss 1.25e-3\nx\ny\ndone in 3 s\n")
    assert blocks.same_output("a\n…\n", "a\n")
    assert not blocks.same_output("a\n", "a\nb\n")
    assert not blocks.same_output("loss 0.5\n", "reward 0.5\n")


def test_the_last_run_of_the_long_commands_had_the_commands_of_the_pages() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    listed: dict[str, list[str]] = {}
    for block in BLOCKS:
        if block.mark == "docs-test":
            commands = listed.setdefault(block.page.relative_to(ROOT).as_posix(), [])
            commands += [command for command, _ in block.commands()]
    assert {page: entry["commands"] for page, entry in recorded.items()} == listed, "run `make docs-test`"
