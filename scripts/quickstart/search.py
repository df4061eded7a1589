"""Questions about made-up people, which take two searches of an offline corpus. SFT teaches to stop after the first.

    boss of boss of KALO
    search KALO  ->  [1] KALO          the page that has this title
                     boss MIRU
    search MIRU  ->  [1] MIRU
                     boss SEFA         so the answer is SEFA

After the first page most traces answer with the boss that they see, which is always wrong; the others search for that
boss and are right. The misleading tool has a permuted corpus, in which every title has the text of another page: a
model that knows the answers by heart would not follow it.

Question and pages end with the name that is to be copied, so that a small model learns to copy in few steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

from data import call, split, write_sft, write_tasks
from kind import QuickstartKind

from ramet import Benchmark, Task, user_prompt
from ramet_tools_bing.corpus_commands import corpus
from ramet_tools_bing.results import SearchItem, default

CONSONANTS, VOWELS = "BDFGKLMNRSTV", "AEIOU"
PEOPLE = 2000
TEST_QUESTIONS, RL_QUESTIONS = 200, 600
HABIT = 0.6  # share of traces that stop after the first page


@dataclass(frozen=True, slots=True)
class Page:
    name: str  # whose page it is, and its title
    boss: str

    @property
    def text(self) -> str:
        return f"boss {self.boss}"


Pages = Mapping[str, Page]  # by name


def make_pages() -> dict[str, Page]:
    """Always the same. Each is the boss of one other."""
    syllables = [consonant + vowel for consonant, vowel in product(CONSONANTS, VOWELS)]
    names = [first + second for first, second in product(syllables, syllables) if len({*first, *second}) == 4]
    people = Random("people").sample(names, PEOPLE)
    return {name: Page(name, boss) for name, boss in zip(people, [*people[1:], people[0]], strict=True)}


def permuted(pages: Pages) -> dict[str, Page]:
    """The same titles and the same texts, but each title has the text of another page."""
    ring = list(pages.values())
    Random("permuted").shuffle(ring)
    return {page.name: replace(other, name=page.name) for page, other in zip(ring, [*ring[1:], ring[0]], strict=True)}


def question(pages: Pages, name: str) -> Task:
    return Task(
        id=f"people/{name}",
        prompt=user_prompt(f"boss of boss of {name}"),
        answer=(pages[pages[name].boss].boss,),
        data_source="people",
        metadata={"name": name},
    )


def trace(pages: Pages, task: Task, random: Random) -> str:
    page = pages[task.metadata["name"]]
    searched = _search(page)
    if random.random() >= HABIT:
        page = pages[page.boss]
        searched += _search(page)
    return f"{searched}<answer>{page.boss}</answer>"


def _search(page: Page) -> str:
    return call("search", page.name, default([SearchItem(title=page.name, text=page.text)], 1, len(page.text)))


def write(data: Path, benchmark: Benchmark, rows: int, seed: int) -> None:
    """The two corpora, and the questions: those of the benchmark are the same for every seed."""
    pages = make_pages()
    write_corpus(data / "corpus.sqlite", pages)
    write_corpus(data / "permuted.sqlite", permuted(pages))
    tasks = [question(pages, name) for name in pages]
    for_sft, for_rl = split(tasks[TEST_QUESTIONS:], rl=RL_QUESTIONS, seed=seed)
    write_tasks(data / "test.jsonl", tasks[:TEST_QUESTIONS])
    write_sft(data / "sft.jsonl", for_sft, partial(trace, pages), rows=rows, seed=seed)
    write_tasks(data / "rl.jsonl", for_rl)


def write_corpus(path: Path, pages: Pages) -> None:
    """With `ramet corpus build`, from pages as JSON lines."""
    rows = ({"title": page.name, "text": page.text} for page in pages.values())
    source = path.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus(["build", str(source), "--out", str(path)])


def _said(result: str) -> str:
    """The boss of a page, which is its last word."""
    return result.split()[-1]


def _corpus(file: str, data: Path) -> list[str]:
    return [f"tools.search.params.corpus={data / file}"]


KIND = QuickstartKind(
    name="quickstart_search",
    benchmark="files",
    skill="to search until the answer is found",
    habit="stopping after the first page",
    calls=2,
    use="two searches",
    sizes={"hidden": 96, "layers": 3, "intermediate": 192},  # 0.3M parameters
    sft_rows=4800,  # 300 steps of 16
    least_forks=1.0,
    write=write,
    inputs=partial(_corpus, "corpus.sqlite"),
    test=lambda data: [f"benchmarks.files.params.paths=[{data / 'test.jsonl'}]"],
    misleading="a permuted corpus",
    mislead=partial(_corpus, "permuted.sqlite"),
    said=_said,
)
