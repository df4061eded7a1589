"""The kinds of task of this bench: those of `ramet bench branching`, and `people`, which needs a real model."""

from __future__ import annotations

from functools import partial

import people
from settings import REAL

from ramet_benchmarks.branching.kinds import KINDS as SHIPPED
from ramet_benchmarks.branching.kinds import Item, TaskKind, write

__all__ = ["KINDS", "TaskKind", "write"]
PEOPLE = TaskKind(
    name="people",
    setting=REAL,
    items=lambda: [Item(one.text, one.answer, partial(people.trace, one)) for one in people.questions()],
    tool="tools.search.use=people",
    reward="qa_em",
    habit=people.HABIT,
    max_prompt_tokens=64,
    max_response_tokens=160,
    certain=lambda text, n: n >= people.HOPS,
)
KINDS = {**SHIPPED, PEOPLE.name: PEOPLE}
