"""Word problems of the kind of GSM8K, with traces that compute every step with the Python tool.

    Nora earns $14 an hour and works 6 hours a day on 5 days a week. The bus costs Nora $20 a week. How much is left ...
    hours: <python>6*5</python> <result> 30 </result>pay: <python>14*30</python> <result> 420 </result>
    left: <python>420-20</python> <result> 400 </result><answer>400</answer>

Nothing is taken from GSM8K: each story is written here, in two ways, and only names, things and numbers are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from data import call
from word_problems import Problem

SIZES = {"sft": 240, "sft_held_out": 60, "rl": 100, "generated": 40}  # problems by file; no problem is in two
TRACES = ("sft", "sft_held_out")  # files with traces; the others have tasks
NAMES = ("Nora", "Omar", "Paula", "Quinn", "Rosa", "Sam", "Tara", "Umar", "Vera", "Will", "Yara", "Zoe")
THINGS = ("pens", "stickers", "marbles", "apples", "shells", "ribbons", "candles", "stamps", "buttons", "cookies")
ITEMS = ("jacket", "lamp", "bag", "chair", "watch", "helmet", "tent", "kettle")


@dataclass(frozen=True, slots=True)
class Story:
    """{A}, {B} and {C} are names, {x} and {y} things, {z} is an item, {a} to {e} and {p} are numbers from `draws`.

    A step is `what: expression`, where {r1} is the result of the first step. All results are whole and positive.
    """

    texts: tuple[str, str]
    draws: Mapping[str, Sequence[int]]
    steps: tuple[str, ...]


STORIES = (
    Story(
        (
            "{A} buys {a} packs of {x} for ${b} each and {c} packs of {y} for ${d} each, and pays with ${e}. How much "
            "change does {A} get?",
            "A box of {x} costs ${b} and a box of {y} ${d}. How many of {A}'s ${e} are left after {a} boxes of {x} and "
            "{c} boxes of {y}?",
        ),
        {"a": range(2, 9), "b": range(2, 9), "c": range(2, 9), "d": range(3, 12), "e": (50, 100, 200)},
        ("{x}: {a}*{b}", "{y}: {c}*{d}", "together: {r1}+{r2}", "left: {e}-{r3}"),
    ),
    Story(
        (
            "A {z} costs ${a}. In the sale it is {p}% cheaper. How much do {b} of them cost in the sale?",
            "A shop takes {p}% off the price of a {z}, which was ${a}. {A} buys {b}. How many dollars does {A} pay?",
        ),
        {"a": range(20, 201, 10), "p": (10, 20, 25, 30, 40, 50), "b": range(2, 7)},
        ("discount: {a}*{p}/100", "new price: {a}-{r1}", "all: {b}*{r2}"),
    ),
    Story(
        (
            "{A} has {a} bags with {b} {x} in each. {A} keeps {c} {x} and shares the others equally among {d} friends. "
            "How many {x} does each friend get?",
            "From {a} boxes of {b} {x} {A} takes {c} {x} home. The rest is divided equally between {d} children. How "
            "many {x} are there for each child?",
        ),
        {"a": range(3, 10), "b": range(6, 21), "c": range(2, 21), "d": range(2, 9)},
        ("all {x}: {a}*{b}", "rest: {r1}-{c}", "each: {r2}/{d}"),
    ),
    Story(
        (
            "{A} earns ${a} an hour and works {b} hours a day on {c} days a week. The bus costs {A} ${d} a week. How "
            "much of a week's pay is left?",
            "On {c} days of the week {A} works {b} hours for ${a} an hour, and spends ${d} a week on lunch. How many "
            "dollars does {A} keep in a week?",
        ),
        {"a": range(9, 26), "b": range(3, 9), "c": range(2, 7), "d": range(10, 41, 5)},
        ("hours: {b}*{c}", "pay: {a}*{r1}", "left: {r2}-{d}"),
    ),
    Story(
        (
            "{A} cycles for {a} hours at {b} miles per hour and then walks for {c} hours at {d} miles per hour. How "
            "many miles is that in all?",
            "Walking, {A} makes {d} miles per hour, and by bicycle {b}. How far does {A} get in {c} hours of walking "
            "and {a} hours of cycling?",
        ),
        {"a": range(2, 6), "b": range(9, 16), "c": range(2, 5), "d": (2, 3, 4)},
        ("by bicycle: {a}*{b}", "on foot: {c}*{d}", "in all: {r1}+{r2}"),
    ),
    Story(
        (
            "{A} has to drive {a} miles. In the first {b} hours {A} drives {c} miles per hour. How many hours does the "
            "rest take at {d} miles per hour?",
            "The way to the sea is {a} miles long. A bus goes {c} miles per hour for {b} hours and {d} miles per hour "
            "after that. How many hours does the second part take?",
        ),
        {"a": range(150, 601, 10), "b": range(2, 5), "c": (40, 50, 60), "d": (30, 40, 50, 60)},
        ("driven: {b}*{c}", "rest: {a}-{r1}", "hours: {r2}/{d}"),
    ),
    Story(
        (
            "{A} is {a} years old. {B} is {b} years older. How old will they be together in {c} years?",
            "{B} was born {b} years before {A}, who is {a} now. What is the sum of their ages {c} years from now?",
        ),
        {"a": range(5, 40), "b": range(2, 20), "c": range(2, 12)},
        ("{B}: {a}+{b}", "{A} then: {a}+{c}", "{B} then: {r1}+{c}", "together: {r2}+{r3}"),
    ),
    Story(
        (
            "{A} is {a} years old. {B} is {b} times as old as {A}, and {C} is {c} years younger than {B}. How old is "
            "{C}?",
            "{C}'s aunt {B} is {c} years older than {C} and {b} times as old as {A}. {A} is {a}. What is {C}'s age?",
        ),
        {"a": range(4, 15), "b": range(3, 6), "c": range(2, 12)},
        ("{B}: {a}*{b}", "{C}: {r1}-{c}"),
    ),
    Story(
        (
            "{A} has {a} {x}. {B} has twice as many as {A}, and {C} has {b} fewer than {B}. How many {x} have the "
            "three together?",
            "{B} finds twice as many {x} as {A}, and {C} finds {b} less than {B}. {A} finds {a}. How many {x} do they "
            "find in total?",
        ),
        {"a": range(10, 60), "b": range(2, 20)},
        ("{B}: 2*{a}", "{C}: {r1}-{b}", "together: {a}+{r1}+{r2}"),
    ),
    Story(
        (
            "A school has {a} pupils. {p}% of them walk to school, {b} come by bike, and the others take the bus. How "
            "many take the bus?",
            "{p}% of the {a} guests of a hotel are children, and {b} are older than 60. How many guests are neither?",
        ),
        {"a": range(100, 601, 20), "p": (10, 15, 20, 25, 30, 40), "b": range(12, 60)},
        ("part: {a}*{p}/100", "others: {a}-{r1}", "rest: {r2}-{b}"),
    ),
    Story(
        (
            "A {z} costs ${a}. {A} has ${b} and saves ${c} every week. After how many weeks can {A} buy it?",
            "{A} wants a {z} for ${a}, already owns ${b}, and earns ${c} a week by helping {B}. How many weeks does it "
            "take?",
        ),
        {"a": range(60, 241, 4), "b": range(10, 50), "c": range(4, 16)},
        ("missing: {a}-{b}", "weeks: {r1}/{c}"),
    ),
    Story(
        (
            "A garden has {a} rows of {b} bushes, and every bush carries {c} roses. {A} ties them into bunches of {d}. "
            "How many bunches are there?",
            "{A} sets up {a} shelves with {b} jars on each, puts {c} sweets into every jar, and later fills them into "
            "bags of {d} sweets. How many bags does {A} need?",
        ),
        {"a": range(3, 10), "b": range(4, 13), "c": range(3, 11), "d": (4, 5, 6, 8, 10, 12)},
        ("places: {a}*{b}", "all: {r1}*{c}", "packed: {r2}/{d}"),
    ),
    Story(
        (
            "A book has {a} pages. {A} reads {b} pages a day for {c} days and wants to finish it in {d} more days. How "
            "many pages a day must {A} read then?",
            "{A} has {a} photos to sort. After {c} days with {b} photos a day there are {d} days left. How many photos "
            "does {A} have to sort on each of them?",
        ),
        {"a": range(120, 501, 5), "b": range(8, 30), "c": range(3, 9), "d": range(3, 9)},
        ("done: {b}*{c}", "rest: {a}-{r1}", "a day: {r2}/{d}"),
    ),
    Story(
        (
            "A machine makes {a} {x} in {b} minutes. How many {x} does it make in {c} hours?",
            "In {b} minutes {A} packs {a} {x}. {A} works like this for {c} hours. How many {x} are packed then?",
        ),
        {"a": range(10, 121, 5), "b": range(2, 13), "c": range(2, 7)},
        ("a minute: {a}/{b}", "minutes: {c}*60", "all: {r1}*{r2}"),
    ),
    Story(
        (
            "A pump brings {b} liters a minute into an empty tank of {a} liters, and {c} liters a minute leak out. "
            "After how many minutes is the tank full?",
            "A snail climbs {b} inches every day and slips back {c} inches every night. After how many days and nights "
            "is it {a} inches higher?",
        ),
        {"a": range(60, 301, 6), "b": range(8, 26), "c": range(2, 8)},
        ("gain: {b}-{c}", "time: {a}/{r1}"),
    ),
    Story(
        (
            "{A} buys {a} dozen {x} for ${b} a dozen and sells every one of them for ${c}. How many dollars more "
            "than before does {A} have?",
            "{B} pays ${b} for a dozen {x}. What is the profit if {B} buys {a} dozen and gets ${c} for each of the "
            "{x}?",
        ),
        {"a": range(2, 9), "b": range(4, 12), "c": (2, 3, 4)},
        ("pieces: {a}*12", "income: {c}*{r1}", "cost: {a}*{b}", "profit: {r2}-{r3}"),
    ),
    Story(
        (
            "A ticket for the zoo costs ${c}, and children pay half. How much do {a} adults and {b} children pay?",
            "{a} grown-ups and {b} children take the ferry. Grown-ups pay ${c}, children half of it. What do they pay "
            "together?",
        ),
        {"a": range(2, 8), "b": range(2, 12), "c": range(8, 31, 2)},
        ("child: {c}/2", "children: {b}*{r1}", "adults: {a}*{c}", "together: {r2}+{r3}"),
    ),
    Story(
        (
            "{A} buys a {z} for ${a}, pays ${b} at once and the rest in {c} equal parts. How much is one part?",
            "A {z} costs ${a}. {A} gives ${b}, and {c} friends divide the rest equally. How many dollars does each "
            "friend give?",
        ),
        {"a": range(80, 401, 10), "b": range(20, 71, 5), "c": range(2, 13)},
        ("rest: {a}-{b}", "part: {r1}/{c}"),
    ),
    Story(
        (
            "{A} has {a} {x}, gives a quarter of them to {B} and then a third of the rest to {C}. How many {x} are "
            "left?",
            "A quarter of {a} {x} are red. Of the others a third are blue, and all that remain are green. How many "
            "green {x} are there?",
        ),
        {"a": range(12, 121, 4)},
        ("quarter: {a}/4", "rest: {a}-{r1}", "third: {r2}/3", "left: {r2}-{r3}"),
    ),
    Story(
        (
            "{A} scored {a}, {b} and {c} points in three games. How many points is that a game on average?",
            "Three boxes hold {a}, {b} and {c} {x}. {A} moves {x} until all three hold the same number. What is this "
            "number?",
        ),
        {"a": range(4, 40), "b": range(4, 40), "c": range(4, 40)},
        ("all: {a}+{b}+{c}", "mean: {r1}/3"),
    ),
)


def problems(count: int, random: Random) -> list[Problem]:
    """Return so many different ones."""
    by_text: dict[str, Problem] = {}
    while len(by_text) < count:
        problem = draw(random.choice(STORIES), random)
        by_text.setdefault(problem.text, problem)
    return list(by_text.values())


def draw(story: Story, random: Random) -> Problem:
    """Return a problem of the story, with numbers whose results are all whole and positive."""
    (a, b, c), (x, y) = random.sample(NAMES, 3), random.sample(THINGS, 2)
    words = {"A": a, "B": b, "C": c, "x": x, "y": y, "z": random.choice(ITEMS)}
    text = random.choice(story.texts)
    while True:
        numbers = {name: random.choice(allowed) for name, allowed in story.draws.items()}
        steps = _steps(story, {**words, **numbers})
        if all(result > 0 and result == int(result) for _, _, result in steps):
            labels, expressions, results = zip(*steps, strict=True)
            return Problem(text.format_map({**words, **numbers}), labels, expressions, tuple(map(int, results)))


def _steps(story: Story, filled: dict[str, object]) -> list[tuple[str, str, float]]:
    """Return what each step computes, how, and its result."""
    steps = []
    for number, step in enumerate(story.steps, 1):
        label, _, expression = step.format_map(filled).partition(": ")
        result = eval(expression)
        filled[f"r{number}"] = int(result)
        steps.append((label, expression, result))
    return steps


def trace(problem: Problem) -> str:
    """Return the steps as the tool computes them, and the answer."""
    steps = zip(problem.words, problem.expressions, strict=True)
    text = "".join(f"{word}: {call('python', expression, str(eval(expression)))}" for word, expression in steps)
    return f"{text}<answer>{problem.results[-1]}</answer>"


def write(folder: Path, seed: int, sizes: Mapping[str, int] = SIZES) -> list[Problem]:
    """Write one file for each of `sizes`, and return all problems."""
    made = problems(sum(sizes.values()), Random(f"gsm8k:{seed}"))
    start = 0
    for name, size in sizes.items():
        chosen = made[start : start + size]
        rows = map(_with_trace, chosen) if name in TRACES else _tasks(name, chosen)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        start += size
    return made


def _with_trace(problem: Problem) -> dict[str, object]:
    return {"conversations": [{"from": "human", "value": problem.text}, {"from": "gpt", "value": trace(problem)}]}


def _tasks(name: str, chosen: Iterable[Problem]) -> Iterable[dict[str, object]]:
    for number, problem in enumerate(chosen):
        yield {
            "prompt": problem.text,
            "answer": str(problem.results[-1]),
            "data_source": name,
            "id": f"{name}/{number}",
        }
