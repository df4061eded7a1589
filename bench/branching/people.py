"""`people`: two-hop questions over a corpus of short pages, for a real language model.

    Who is the boss of the best friend of Kim Adler?
    best friend: <search>Kim Adler</search> <result>
    Kim Adler works for Tom Weber, is close to Ann Moore, lives beside Leo Frost and rents from Ben Falk.
    </result>boss: <search>Ann Moore</search> <result>
    Ann Moore is a patient of Sam Hill, works for Rosa Park, rents from Will King and lives beside Maria Stone.
    </result><answer>Rosa Park</answer>

Nothing is known without the pages, which say in other words what the question asks for. All traces are right; what is
hard is to choose the right one of four names, after few traces. Nobody made any result more or less certain than
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

FIRST = (
    "Ann", "Ben", "David", "Eva", "Grace", "Hugo", "Jan", "Karl", "Kim", "Leo", "Maria", "Noah", "Paul", "Rosa", "Sam",
    "Tom", "Vera", "Will", "Nina", "Felix", "Clara", "Alma",
)  # fmt: skip
LAST = (
    "Adler", "Costa", "Evans", "Falk", "Green", "Hill", "Jones", "King", "Lopez", "Meyer", "Park", "Quinn", "Reed",
    "Silva", "Stone", "Taylor", "Urban", "Weber", "Young", "Wolf", "Frost", "Lake", "Moore", "Shaw",
)  # fmt: skip
RELATIONS = {  # what a question asks for -> how a page says it
    "boss": "works for",
    "best friend": "is close to",
    "neighbour": "lives beside",
    "teacher": "was taught by",
    "doctor": "is a patient of",
    "landlord": "rents from",
}
STATED = 4  # relations of a page
QUESTIONS = 3000
NO_PAGE = "There is no page of"


@dataclass(frozen=True, slots=True)
class Question:
    first: str  # relation to the person
    second: str
    person: str

    @property
    def text(self) -> str:
        return f"Who is the {self.second} of the {self.first} of {self.person}?"

    @property
    def answer(self) -> str:
        return corpus()[corpus()[self.person][self.first]][self.second]


@cache
def corpus() -> dict[str, dict[str, str]]:
    """Person -> relation -> person, in the order of the page."""
    random = Random("people")
    people = [f"{first} {last}" for first in FIRST for last in LAST]
    found = {}
    for person in people:
        others = random.sample([other for other in people if other != person], STATED)
        found[person] = dict(zip(random.sample(list(RELATIONS), STATED), others, strict=True))
    return found


def page(name: str) -> str:
    """What the search tool returns."""
    if name not in corpus():
        return f"{NO_PAGE} {name}."
    *parts, last = (f"{RELATIONS[relation]} {other}" for relation, other in corpus()[name].items())
    return f"{name} {', '.join(parts)} and {last}."


def questions() -> list[Question]:
    """In an order that is always the same."""
    random, found = Random("questions"), dict[str, Question]()
    while len(found) < QUESTIONS:
        person = random.choice(list(corpus()))
        first = random.choice(list(corpus()[person]))
        second = random.choice(list(corpus()[corpus()[person][first]]))
        question = Question(first, second, person)
        if question.answer != person:
            found.setdefault(question.text, question)
    return list(found.values())


def trace(question: Question, _habit: float, _random: Random) -> str:
    """One written rollout. There is no habit to be wrong."""
    friend = corpus()[question.person][question.first]
    hops = "".join(
        f"{relation}: <search>{name}</search> <result>\n{page(name)}\n</result>"
        for relation, name in ((question.first, question.person), (question.second, friend))
    )
    return f"{hops}<answer>{question.answer}</answer>"
