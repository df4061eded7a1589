"""`people`: two-hop questions over a corpus of short pages, for a real language model.

    Who is the boss of the best friend of Kim Adler?
    best friend: <search>Kim Adler</search> <result>
    Kim Adler: the boss is Tom Weber, the best friend is Ann Moore, the landlord is Ben Falk.
    </result>boss: <search>Ann Moore</search> <result>
    Ann Moore: the doctor is Sam Hill, the boss is Rosa Park, the neighbour is Maria Stone.
    </result><answer>Rosa Park</answer>

Nothing is known without the pages. All traces are right, but `HABIT` of them are by people who know the second answer
by heart: they write it after the first page. A model that learns this from them guesses. So after the first page there
is a choice, and after the second one a name to be read.
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
RELATIONS = ("boss", "best friend", "neighbour", "teacher", "doctor", "landlord")
STATED = 3  # relations of a page
HABIT = 0.6
QUESTIONS = 3000
HOPS = 2
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
        found[person] = dict(zip(random.sample(RELATIONS, STATED), others, strict=True))
    return found


def page(name: str) -> str:
    """What the search tool returns."""
    if name not in corpus():
        return f"{NO_PAGE} {name}."
    stated = (f"the {relation} is {other}" for relation, other in corpus()[name].items())
    return f"{name}: {', '.join(stated)}."


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


def trace(question: Question, habit: float, random: Random) -> str:
    """One written rollout, with this probability that its writer knows the second answer by heart."""
    text = f"{question.first}: {_call(question.person)}"
    if random.random() >= habit:
        text += f"{question.second}: {_call(corpus()[question.person][question.first])}"
    return f"{text}<answer>{question.answer}</answer>"


def _call(name: str) -> str:
    return f"<search>{name}</search> <result>\n{page(name)}\n</result>"
