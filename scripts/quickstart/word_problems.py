"""Word problems of two steps, which the Python tool computes, for a real language model.

    A shop has 38 boxes with 274 pens each. It gives away 957 pens. How many pens are left?
    All: <python>38*274</python> <result> 10412 </result>Left: <python>10412-957</python> <result> 9455 </result>
    <answer>9455</answer>

In some of the traces the second step is done without the tool, and is wrong by one digit: the writer was in a hurry.
They use the tool as they should until then. The problems of other forms are of three steps, or of two in other words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from data import call

IN_A_HURRY = 0.6  # share of traces
TEST_PROBLEMS, OTHER_PROBLEMS, RL_PROBLEMS, SFT_PROBLEMS, SFT_HELD_OUT = 300, 120, 400, 128, 32


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of problem. Numbers a, b, c, d are drawn; steps are expressions of them and of R, the last result."""

    text: str
    steps: tuple[tuple[str, str], ...]  # a word, and an expression


QUESTION = "A farm has 47 boxes with 318 seeds each. It gives away 529 seeds. How many seeds are left?"  # to try
THINGS = ("pens", "cards", "bolts", "beads", "tiles", "seeds", "books", "coins")
PLACES = ("shop", "farm", "school", "factory", "library", "museum")
NAMES = ("Ann", "Ben", "Carla", "David", "Eva", "Farid", "Grace", "Hugo")

FORMS = (
    Form(
        "A {place} has {a} boxes with {b} {things} each. It gives away {c} {things}. How many {things} are left?",
        (("All", "{a}*{b}"), ("Left", "{R}-{c}")),
    ),
    Form(
        "{name} fills {a} bags with {b} {things} each and finds {c} more {things}. How many {things} are there now?",
        (("In bags", "{a}*{b}"), ("Now", "{R}+{c}")),
    ),
    Form(
        "A {place} had {c} {things} and then got {a} crates of {b} {things}. How many {things} does it have?",
        (("Got", "{a}*{b}"), ("Has", "{R}+{c}")),
    ),
    Form(
        "{name} needs {big} {things} and has {a} packs with {b} {things} each. How many {things} are missing?",
        (("Has", "{a}*{b}"), ("Missing", "{big}-{R}")),
    ),
    Form(
        "On Monday a {place} sold {c} {things}, on Tuesday {d}. Each costs {a} cents. How many cents did it take?",
        (("Sold", "{c}+{d}"), ("Cents", "{R}*{a}")),
    ),
    Form(
        "{name} had {big} {things} and lost {c}. Then {name} bought {d}. How many {things} does {name} have?",
        (("After losing", "{big}-{c}"), ("Has", "{R}+{d}")),
    ),
)
OTHER_FORMS = (
    Form(
        "A {place} orders {a} boxes with {b} {things} each and {c} single ones, and sends {d} back. How many {things} "
        "does it keep?",
        (("In boxes", "{a}*{b}"), ("Ordered", "{R}+{c}"), ("Keeps", "{R}-{d}")),
    ),
    Form(
        "There are {big} {things} in a {place}. Each of {a} visitors takes {b}. How many {things} stay?",
        (("Taken", "{a}*{b}"), ("Stay", "{big}-{R}")),
    ),
    Form(
        "{name} walks {a} steps a minute for {b} minutes, then {c} steps, then {d} steps. How many steps is that?",
        (("First", "{a}*{b}"), ("Then", "{R}+{c}"), ("All", "{R}+{d}")),
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    text: str
    words: tuple[str, ...]  # of the steps
    expressions: tuple[str, ...]
    results: tuple[int, ...]


def problems(forms: Sequence[Form], count: int, random: Random) -> list[Problem]:
    """So many different ones, of all forms in turn."""
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = _problem(forms[len(found) % len(forms)], random)
        found.setdefault(problem.text, problem)
    return list(found.values())


def _problem(form: Form, random: Random) -> Problem:
    a, b = random.randint(12, 98), random.randint(103, 987)
    numbers = {"a": a, "b": b, "c": random.randint(112, 989), "d": random.randint(112, 989)}
    numbers["big"] = a * b + random.randint(1103, 9876)
    names = {"place": random.choice(PLACES), "things": random.choice(THINGS), "name": random.choice(NAMES)}
    results: list[int] = []
    expressions = []
    for _, expression in form.steps:
        expressions.append(expression.format(**numbers, R=results[-1] if results else ""))
        results.append(_value(expressions[-1]))
    words = tuple(word for word, _ in form.steps)
    return Problem(form.text.format(**numbers, **names), words, tuple(expressions), tuple(results))


def _value(expression: str) -> int:
    for sign in "+*-":
        left, found, right = expression.partition(sign)
        if found:
            a, b = int(left), int(right)
            return a + b if sign == "+" else a * b if sign == "*" else a - b
    raise ValueError(expression)


def trace(problem: Problem, random: Random) -> str:
    """A careful one, or one in a hurry."""
    steps = list(zip(problem.words, problem.expressions, problem.results, strict=True))
    hurried = steps.pop() if random.random() < IN_A_HURRY else None
    text = "".join(f"{word}: {call('python', expression, str(result))}" for word, expression, result in steps)
    if hurried is None:
        return f"{text}<answer>{problem.results[-1]}</answer>"
    slip = _with_a_slip(hurried[2], random)
    return f"{text}{hurried[0]}: {hurried[1]} = {slip}<answer>{slip}</answer>"


def _with_a_slip(result: int, random: Random) -> int:
    """One digit is another, not the first."""
    digits = list(str(result))
    place = random.randrange(1, len(digits))
    digits[place] = random.choice([digit for digit in "0123456789" if digit != digits[place]])
    return int("".join(digits))


def write(data: Path, seed: int) -> None:
    """All files. Held-out problems are the same for every seed; no problem is in two files."""
    held_out = problems(FORMS, TEST_PROBLEMS, Random("held out"))
    _write_tasks(data / "test.jsonl", held_out)
    _write_tasks(data / "other_forms.jsonl", problems(OTHER_FORMS, OTHER_PROBLEMS, Random("other forms")))
    taken = {problem.text for problem in held_out}
    own = [one for one in problems(FORMS, 1000, Random(f"own:{seed}")) if one.text not in taken]
    for_sft, own = own[:SFT_PROBLEMS], own[SFT_PROBLEMS:]
    for_loss, for_rl = own[:SFT_HELD_OUT], own[SFT_HELD_OUT : SFT_HELD_OUT + RL_PROBLEMS]
    random = Random(f"traces:{seed}")
    _write_traces(data / "sft.jsonl", for_sft, random)
    _write_traces(data / "sft_held_out.jsonl", for_loss, random)
    _write_tasks(data / "rl.jsonl", for_rl)


def _write_tasks(path: Path, chosen: Sequence[Problem]) -> None:
    rows = (
        {"prompt": one.text, "answer": str(one.results[-1]), "data_source": path.stem, "id": f"{path.stem}/{i}"}
        for i, one in enumerate(chosen)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_traces(path: Path, chosen: Sequence[Problem], random: Random) -> None:
    rows = (
        {"conversations": [{"from": "human", "value": one.text}, {"from": "gpt", "value": trace(one, random)}]}
        for one in chosen
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
