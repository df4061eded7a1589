"""`hops`: two-hop questions over a generated corpus, which a search tool looks up.

    question  417k=      in town 417: the best friend of the best friend of k
    k  ->  =T            the page of k: nothing to choose
    T  ->  wsz           the friends of k, the best one last: z
    z  ->  =M
    M  ->  ebf           and the answer is f

Each town has a corpus of its own, so nothing can be answered without the tool. After a page there are three names to
choose from, after a name there is nothing to choose: results differ in how uncertain they make the policy. SFT first
teaches the skill, with right traces, and then a habit: with probability `HABIT` at each page a trace takes the friend
who is named first, so that the policy answers right about `(1 - HABIT) ** 2` of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from string import ascii_lowercase, ascii_uppercase

FRIENDS = 3
NAMES = [name for name in ascii_lowercase if name != "a"]  # the reward `qa_f1` drops articles
TOWNS = range(100, 1000)
QUESTIONS = 12  # of a town
HOPS = 2
HABIT = 0.6


@dataclass(frozen=True, slots=True)
class Town:
    """Pages of a town: `index` has the page of each name, `pages` the friends, the best one last."""

    index: dict[str, str]
    pages: dict[str, str]

    def look_up(self, text: str) -> str:
        """Return what the search tool answers."""
        return f"={self.index[text]}" if text in self.index else self.pages.get(text, "none")

    def friends(self, name: str) -> str:
        return self.pages[self.index[name]]


@dataclass(frozen=True, slots=True)
class TownQuestion:
    town: int
    start: str

    @property
    def text(self) -> str:
        return f"{self.town}{self.start}="

    @property
    def answer(self) -> str:
        name = self.start
        for _ in range(HOPS):
            name = town(self.town).friends(name)[-1]
        return name


@cache
def town(number: int) -> Town:
    """Return the town of a number, always the same."""
    random = Random(f"town {number}")
    index = dict(zip(NAMES, random.sample(ascii_uppercase, len(NAMES)), strict=True))
    pages = {
        index[name]: "".join(random.sample([other for other in NAMES if other != name], FRIENDS)) for name in NAMES
    }
    return Town(index=index, pages=pages)


def questions() -> list[TownQuestion]:
    """Return all questions, town after town, the towns in an order that is always the same."""
    random = Random("questions")
    found = []
    for number in random.sample(TOWNS, len(TOWNS)):
        found += [TownQuestion(number, name) for name in random.sample(NAMES, QUESTIONS)]
    return found


def trace(question: TownQuestion, habit: float, random: Random) -> str:
    """Return a written rollout, with this probability of the habit at each page."""
    here, text, name = town(question.town), "", question.start
    for _ in range(HOPS):
        text += _call(here, name) + _call(here, here.index[name])
        friends = here.friends(name)
        name = friends[0] if random.random() < habit else friends[-1]
    return f"{text}<answer>{name}</answer>"


def _call(here: Town, text: str) -> str:
    return f"<search>{text}</search> <result>\n{here.look_up(text)}\n</result>"
