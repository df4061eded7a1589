"""Word problems of two steps, which the Python tool computes, for a real language model.

    Ann has 2140 pens. Ann buys 12 boxes with 35 pens each. Ben takes 457 pens from Ann. How many pens has Ann now?
    buys: <python>2140+12*35</python> <result> 2560 </result>gives: <python>2560-457</python> <result> 2103 </result>
    <answer>2103</answer>

All traces are right. Their writers take the tool for the first step; the second is easy for a person, and many do it
in their head: `gives: 2560-457 = 2103`. A small model that does so is often wrong. The problems of other forms say
the same events in words that no problem for training has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from data import call

TEST_PROBLEMS, OTHER_PROBLEMS, RL_PROBLEMS, SFT_PROBLEMS, SFT_HELD_OUT = 300, 120, 400, 48, 24
QUESTION = (
    "Ann has 2140 pens. Ann buys 12 boxes with 35 pens each. Ben takes 457 pens from Ann. How many pens has Ann now?"
)
THINGS = ("pens", "cards", "bolts", "beads", "tiles", "seeds", "books", "coins")
NAMES = ("Ann", "Ben", "Carla", "David", "Eva", "Farid", "Grace", "Hugo")
STEPS = 2
IN_THE_HEAD = 0.6  # share of traces whose writer does the last step without the tool


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to the things of {name}. {R} is their number before it."""

    word: str  # in the trace
    texts: tuple[str, ...]  # ways to say it
    other: str  # another one, which no problem for training has
    step: str = ""  # the number afterwards; empty: it stays


EVENTS = (
    Event(
        "buys",
        ("{name} buys {a} boxes with {b} {things} each.", "{name} gets {a} bags of {b} {things}."),
        "In a market {name} pays for {a} packs, each with {b} {things}.",
        "{R}+{a}*{b}",
    ),
    Event(
        "gives",
        ("{name} gives {c} {things} to {friend}.", "{friend} takes {c} {things} from {name}."),
        "{c} {things} go to {friend}.",
        "{R}-{c}",
    ),
    Event(
        "finds",
        ("{name} finds {c} more {things}.", "{friend} brings {c} {things} to {name}."),
        "There are {c} {things} in a drawer, and {name} keeps them.",
        "{R}+{c}",
    ),
    Event(
        "sells",
        ("{name} sells {d} bags with {e} {things} each.", "Each of {d} children gets {e} {things} from {name}."),
        "{name} makes {d} heaps of {e} {things} and throws them away.",
        "{R}-{d}*{e}",
    ),
)
NOTHING = (
    Event("", ("{friend} has {c} {others}.", "{friend} picks up {a} {others}."), "{friend} sells {b} {others}."),
    Event("", ("{name} is {g} years old.",), "It is {g} o'clock."),
)


@dataclass(frozen=True, slots=True)
class Problem:
    text: str
    words: tuple[str, ...]  # of the steps
    expressions: tuple[str, ...]
    results: tuple[int, ...]


Step = tuple[str, str, int]  # word, expression, result
Row = Callable[[Problem, Random], dict[str, Any]]  # a trace of a problem, for SFT


def problems(count: int, random: Random, *, other: bool = False) -> list[Problem]:
    """So many different ones; `other`: in other words."""
    by_text: dict[str, Problem] = {}
    while len(by_text) < count:
        problem = _problem(random, other)
        by_text.setdefault(problem.text, problem)
    return list(by_text.values())


def _problem(random: Random, other: bool) -> Problem:
    name, friend = random.sample(NAMES, 2)
    things, others = random.sample(THINGS, 2)
    names = {"name": name, "friend": friend, "things": things, "others": others}
    events = random.sample(EVENTS, STEPS)
    if random.random() < 0.4:
        events.insert(random.randrange(len(events) + 1), random.choice(NOTHING))
    number = random.randint(1000, 5000)
    texts, words, expressions, results = [f"{name} has {number} {things}."], [], [], []
    for event in events:
        drawn = _numbers(random)
        texts.append((event.other if other else random.choice(event.texts)).format(**names, **drawn))
        if event.step:
            words.append(event.word)
            expressions.append(event.step.format(**drawn, R=number))
            number = eval(expressions[-1])
            results.append(number)
    texts.append(f"How many {things} has {name} now?")
    return Problem(" ".join(texts), tuple(words), tuple(expressions), tuple(results))


def _numbers(random: Random) -> dict[str, int]:
    ranges = {"a": (4, 29), "b": (12, 98), "c": (112, 489), "d": (4, 19), "e": (12, 39), "g": (7, 12)}
    return {name: random.randint(*ends) for name, ends in ranges.items()}


def drawn_steps(problem: Problem, random: Random) -> tuple[list[Step], list[Step]]:
    """The steps of a writer with the tool, and those in the head: the last one of many writers."""
    steps = list(zip(problem.words, problem.expressions, problem.results, strict=True))
    in_the_head = [steps.pop()] if random.random() < IN_THE_HEAD else []
    return steps, in_the_head


def trace(problem: Problem, random: Random) -> str:
    """The steps and the answer."""
    steps, in_the_head = drawn_steps(problem, random)
    text = "".join(f"{word}: {call('python', expression, str(result))}" for word, expression, result in steps)
    text += "".join(f"{word}: {expression} = {result}" for word, expression, result in in_the_head)
    return f"{text}<answer>{problem.results[-1]}</answer>"


def trace_row(problem: Problem, random: Random) -> dict[str, Any]:
    """A row of SFT."""
    return {
        "conversations": [{"from": "human", "value": problem.text}, {"from": "gpt", "value": trace(problem, random)}]
    }


def write(data: Path, seed: int, row: Row = trace_row) -> None:
    """All files. Held-out problems are the same for every seed; no problem is in two files."""
    held_out = problems(TEST_PROBLEMS, Random("held out"))
    _write_tasks(data / "test.jsonl", held_out)
    _write_tasks(data / "other_forms.jsonl", problems(OTHER_PROBLEMS, Random("other forms"), other=True))
    taken = {problem.text for problem in held_out}
    own = [problem for problem in problems(1000, Random(f"own:{seed}")) if problem.text not in taken]
    for_sft, own = own[:SFT_PROBLEMS], own[SFT_PROBLEMS:]
    for_loss, for_rl = own[:SFT_HELD_OUT], own[SFT_HELD_OUT : SFT_HELD_OUT + RL_PROBLEMS]
    random = Random(f"traces:{seed}")
    _write_rows(data / "sft.jsonl", (row(problem, random) for problem in for_sft))
    _write_rows(data / "sft_held_out.jsonl", (row(problem, random) for problem in for_loss))
    _write_tasks(data / "rl.jsonl", for_rl)


def _write_tasks(path: Path, chosen: Sequence[Problem]) -> None:
    rows = (
        {"prompt": problem.text, "answer": str(problem.results[-1]), "data_source": path.stem, "id": f"{path.stem}/{i}"}
        for i, problem in enumerate(chosen)
    )
    _write_rows(path, rows)


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
