"""`sums`: arithmetic in three steps, each of which the tool `python`, a calculator, can do.

    question  7*8-5-3=
    7*8   ->  56
    56-5  ->  51
    51-3  ->  48, which is the answer

After a result the policy calls the tool again or continues in its head; after the last one there is nothing to choose
but to copy it. SFT first teaches the skill, with right traces, and then a habit: with probability `HABIT` at each later
step a trace does the rest in its head, and is wrong by 1 to `MAX_OFFSET`, so that the policy answers right about
`(1 - HABIT) ** 2` of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

HABIT = 0.55
MAX_OFFSET = 9


@dataclass(frozen=True, slots=True)
class Problem:
    left: int
    right: int
    taken: tuple[int, int]  # away from the product

    @property
    def text(self) -> str:
        return f"{self.left}*{self.right}-{self.taken[0]}-{self.taken[1]}="

    @property
    def answer(self) -> int:
        return self.left * self.right - sum(self.taken)


def problems() -> list[Problem]:
    """Return all whose results have two digits, in an order that is always the same."""
    pairs = [(one, other) for one in range(3, 10) for other in range(3, 10)]
    taken = [(one, other) for one in range(1, 10) for other in range(1, 10)]
    found = [Problem(*pair, both) for pair in pairs for both in taken]
    found = [problem for problem in found if problem.answer >= 10]
    Random("sums").shuffle(found)
    return found


def trace(problem: Problem, habit: float, random: Random) -> str:
    """Return a written rollout, with this probability of the habit at each later step."""
    value = problem.left * problem.right
    text = _call(f"{problem.left}*{problem.right}", value)
    for taken in problem.taken:
        if random.random() < habit:
            offset = random.choice((-1, 1)) * random.randint(1, MAX_OFFSET)
            return f"{text}<answer>{problem.answer + offset}</answer>"
        text += _call(f"{value}-{taken}", value - taken)
        value -= taken
    return f"{text}<answer>{value}</answer>"


def _call(code: str, value: int) -> str:
    return f"<python>{code}</python> <result>\n{value}\n</result>"
