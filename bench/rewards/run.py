"""What scoring costs: token F1 and `math`, beside math-verify called as its own documentation does.

    python bench/rewards/run.py [--repeats 5] [--answers 1000]

Three kinds of answers: short texts (F1), numbers as most answers of mathematical data are, and formulas that take
algebra. `math-verify` parses and compares each answer in the measuring process, with its own time-outs (a signal for
each answer), which is what a training loop gets without a pool; `math` decides what is plain itself and gives the rest
to two processes. Both have to give the same verdicts. The sides take turns; the first round is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results

from ramet import Rollout, Task, user_prompt
from ramet.testing.doubles import written_rollout
from ramet_rewards.config import MathConfig, QaConfig
from ramet_rewards.math import MathReward
from ramet_rewards.qa import f1

Score = Callable[[Sequence[Rollout]], list[float]]

GOAL_F1 = 1000.0  # answers/s
GROUP = 8
WORDS = "paris rome the city of a river north Johann Goethe 1749 wrote Faust and in Frankfurt am Main".split()


def rollout(gold: str, answer: str) -> Rollout:
    task = Task(id="t", prompt=user_prompt("?"), answer=(gold,))
    return written_rollout(task, [f"<answer>{answer}</answer>"], answer=answer)


def texts(n: int, rng: random.Random) -> list[Rollout]:
    def text(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    return [rollout(text(4), text(rng.randint(1, 12))) for _ in range(n)]


def numbers(n: int, rng: random.Random) -> list[Rollout]:
    golds = [rng.randint(-999, 9999) for _ in range(n)]
    forms = ("{}", "${}$", "x = {}", "{}.0")
    return [rollout(str(gold), rng.choice(forms).format(gold + rng.randint(0, 1))) for gold in golds]


def formulas(n: int, rng: random.Random) -> list[Rollout]:
    made = []
    for _ in range(n):
        a, b = rng.randint(1, 99), rng.randint(2, 99)
        gold = rf"\frac{{{a}}}{{{b}}}+\sqrt{{{b}}}"
        right = rf"\sqrt{{{b}}}+\frac{{{2 * a}}}{{{2 * b}}}"
        made.append(rollout(gold, right if rng.random() < 0.5 else rf"\sqrt{{{b}}}-\frac{{{a}}}{{{b}}}"))
    return made


def by_reward(reward: Any, rollouts: Sequence[Rollout]) -> list[float]:
    async def main() -> list[float]:
        scores = await asyncio.gather(*(reward([one]) for one in rollouts))
        return [float(getattr(score, "value", score)) for (score,) in scores]

    return asyncio.run(main())


def by_library(rollouts: Sequence[Rollout]) -> list[float]:
    from math_verify import parse, verify

    return [
        float(verify(parse(f"${one.task.answer[0]}$"), parse(f"${str(one.answer).strip('$')}$"))) for one in rollouts
    ]


def sides() -> dict[str, dict[str, Score]]:
    score_f1, math = f1(QaConfig()), MathReward(MathConfig())
    by_math: dict[str, Callable[[Sequence[Rollout]], list[float]]] = {
        "math": lambda rollouts: by_reward(math, rollouts),
        "math-verify": by_library,
    }
    return {"texts": {"qa_f1": lambda rollouts: by_reward(score_f1, rollouts)}, "numbers": by_math, "formulas": by_math}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--answers", type=int, default=1000)
    given = parser.parse_args()
    answers = {
        "texts": texts(given.answers, random.Random(1)),
        "numbers": numbers(given.answers, random.Random(1)),
        "formulas": formulas(given.answers // 5, random.Random(1)),
    }
    by_kind = sides()
    runs: list[dict[str, Any]] = []
    for repeat in range(given.repeats + 1):
        for kind, by_side in by_kind.items():
            verdicts = {}
            for side, score in by_side.items():
                with measured() as one:
                    verdicts[side] = score(answers[kind])
                run = {"kind": kind, "side": side, "answers": len(answers[kind]), "wall_s": one.wall_s,
                       "cpu_s": one.cpu_s, "load": one.load}  # fmt: skip
                runs += [run] * (repeat > 0)
            first, *others = verdicts.values()
            assert all(found == first for found in others), f"{kind}: the sides disagree"
    summary = summarise(runs)
    path = write_results("rewards", vars(given), runs, summary)
    print(f"\nqa_f1: {summary['texts/qa_f1']['per_s']['median']:.0f} answers/s; goal: {GOAL_F1:.0f}\n{path}")


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By kind and side: answers/s, and ms of this process's CPU for each; printed too."""
    summary, rows = {}, []
    for key in dict.fromkeys((run["kind"], run["side"]) for run in runs):
        own = [run for run in runs if (run["kind"], run["side"]) == key]
        per_s = [run["answers"] / run["wall_s"] for run in own]
        cpu_ms = [1000 * run["cpu_s"] / run["answers"] for run in own]
        summary["/".join(key)] = {"per_s": spread(per_s), "cpu_ms": spread(cpu_ms)}
        rows.append([*key, shown(per_s, 0), shown(cpu_ms)])
    print_table(["answers", "by", "answers/s", "CPU ms of this process"], rows)
    return summary


if __name__ == "__main__":
    main()
