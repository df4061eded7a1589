"""How well does each advantage estimator rank what calls were worth, and how well does `ramet credit`?

    python bench/credit/run.py [--tasks 20] [--samples 128] [--only-credit] [--kinds pivot] [--smoke]

Generated tasks have a planted truth (tasks.py). A scripted policy of known probabilities plays groups of 16 rollouts of
each, once without forks and once as trees. The measurement of `ramet credit` continues the first rollout of each group;
every estimator gets the complete groups. Compared is each call's credit with its planted worth: Spearman's rank
correlation over the calls, with a bootstrap interval over tasks, and in `pivot` tasks how often the call with the
largest credit in size is the one that decides (ties count as a part).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from credit.estimators import ARMS, credits_of, installed
from credit.policy import PlantedRollouts, Right, letters_of
from credit.ranks import correlation
from credit.tasks import KINDS, PlantedTask, make_tasks
from harness import measured, print_table, write_results

from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.branching.tree_expansion import TreeExpansion
from ramet.rollout.config import TreeExpansionConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, Scorer, WeightedReward
from ramet.testing.doubles import tiny_encoder
from ramet_replay.credit.files import CONFIG, MeasuredPoint, PointFile
from ramet_replay.credit.measure import credit_rows, measure
from ramet_replay.credit.points import choose

GROUP, SEED = 16, 1
FOREST: dict[str, Callable[[], Any]] = {"chains": NoBranching, "trees": lambda: TreeExpansion(TreeExpansionConfig())}
Credits = Mapping[tuple[int, str, int], float]  # by (group, rollout, turn)


async def play(tasks: Sequence[PlantedTask], encoder: Encoder, forest: str) -> list[ScoredGroup]:
    rollouts = PlantedRollouts(tasks, encoder, FOREST[forest](), GROUP)
    groups = await rollouts.run(RolloutRequest(tasks=[planted.task for planted in tasks], step=1))
    await rollouts.worker.close()
    scorer = Scorer([WeightedReward(name="right", plugin="bench", reward=Right())])
    return [await scorer.score(group) for group in groups]


async def measured_credit(
    tasks: Sequence[PlantedTask], encoder: Encoder, groups: Sequence[ScoredGroup], samples: Sequence[int], folder: Path
) -> tuple[dict[int, Credits], int]:
    """The credit of each group's first rollout, by the number of continuations, and the tokens sampled for the most."""
    (folder / "rollouts").mkdir(parents=True)
    records = [GroupRecord(step=1, group=group) for group in groups]
    write_records(folder / "rollouts/step_000001.jsonl.gz", records)
    chosen = choose(folder, names=[f"1/{number}/0" for number in range(len(tasks))], step=1, n=0)
    most = max(samples)
    file = PointFile(folder / "credit", {CONFIG: ""})
    file.open()
    rollouts = PlantedRollouts(tasks, encoder, NoBranching(), GROUP)
    scorer = Scorer([WeightedReward(name="right", plugin="bench", reward=Right())])
    settings = {"samples": most, "at_once": 512, "budget": None, "masked_limit": 0.0}
    await measure(rollouts, scorer, chosen, file, **settings)  # type: ignore[arg-type]
    await rollouts.worker.close()
    points = dict(file.points)
    found: dict[int, Credits] = {}
    for n in samples:
        file.points = {name: _first(point, n) for name, point in points.items()}
        found[n] = {_place(row["rollout"], row["turn"]): row["worth"]["mean"] for row in credit_rows(chosen, file)}
    return found, sum(point.tokens for point in points.values())


def _first(point: MeasuredPoint, n: int) -> MeasuredPoint:
    return MeasuredPoint(**{**asdict(point), "rewards": point.rewards[:n]})


def _place(rollout: str, turn: int) -> tuple[int, str, int]:
    _, group, id = rollout.split("/")
    return int(group), id, turn


def compared(credits: Credits, groups: Sequence[ScoredGroup], tasks: Sequence[PlantedTask]) -> dict[str, Any]:
    """Compare with the truth: the correlation over calls, and how often the pivotal call has the largest credit."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    hits: list[float] = []
    for number, (group, planted) in enumerate(zip(groups, tasks, strict=True)):
        for scored in group.rollouts:
            truth = planted.worth(letters_of(scored.rollout.response))
            own = [credits.get((number, scored.rollout.id, turn)) for turn in range(len(truth))]
            calls = [value for value in own if value is not None]
            if len(calls) < len(truth):
                continue
            pairs[planted.id] += zip(calls, truth, strict=True)
            if planted.pivot is not None:
                hits.append(_share(calls, planted.pivot))
    found = correlation(pairs, SEED)
    hit = sum(hits) / len(hits) if hits else None
    return {"correlation": asdict(found), "shown": str(found), "pivot_found": hit}


def _share(calls: Sequence[float], pivot: int) -> float:
    sizes = [round(abs(value), 9) for value in calls]
    return (sizes[pivot] == max(sizes)) / sizes.count(max(sizes))


def run_kind(
    kind: str, n_tasks: int, samples: Sequence[int], encoder: Encoder, *, estimators: bool
) -> list[dict[str, Any]]:
    tasks, rows = make_tasks(kind, n_tasks, SEED), []
    for forest in FOREST if estimators else ["chains"]:
        groups = asyncio.run(play(tasks, encoder, forest))
        if forest == "chains":
            with tempfile.TemporaryDirectory() as folder, measured() as timed:
                credits, tokens = asyncio.run(measured_credit(tasks, encoder, groups, samples, Path(folder)))
            for n, found in credits.items():
                cost = {"tokens": tokens * n // max(samples), "cpu_s": timed.cpu_s * n / max(samples)}
                rows.append({"label": f"ramet credit, {n} continuations", **compared(found, groups, tasks), **cost})
                rows[-1] |= {"kind": kind, "forest": forest}
        for arm in filter(installed, ARMS if estimators else ()):
            numbers = compared(credits_of(arm, groups, tasks), groups, tasks)
            rows.append({"label": arm.label, **numbers, "kind": kind, "forest": forest})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--samples", type=int, default=128, help="the most continuations of a point")
    parser.add_argument("--only-credit", action="store_true", help="without the estimators; writes credit_only.json")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--smoke", action="store_true", help="a few tasks; writes no result")
    options = parser.parse_args()
    n_tasks, most = (4, 8) if options.smoke else (options.tasks, options.samples)
    samples = [n for n in (8, 32, 128) if n < most] + [most]
    encoder = tiny_encoder()
    with measured() as timed:
        estimators = not options.only_credit
        rows = [
            row for kind in options.kinds for row in run_kind(kind, n_tasks, samples, encoder, estimators=estimators)
        ]
    columns = [(kind, forest) for kind in options.kinds for forest in FOREST]
    cells = {(row["label"], row["kind"], row["forest"]): row for row in rows}
    table = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = [cells.get((label, *column)) for column in columns]
        hits = [row["pivot_found"] for row in own[:2] if row is not None]
        found = " / ".join(f"{hit:.2f}" for hit in hits if hit is not None)
        table.append([label, *("-" if row is None else row["shown"] for row in own), found])
    print_table(["credit by", *(" ".join(column) for column in columns), "pivot found (chains / trees)"], table)
    print(f"{timed.cpu_s:.0f} s CPU, {timed.wall_s:.0f} s wall")
    if not options.smoke:
        settings = {"tasks": n_tasks, "group": GROUP, "kinds": list(options.kinds), "samples": samples, "seed": SEED}
        name = "credit" if estimators else "credit_only"
        print(write_results(name, settings, rows, {"cpu_s": timed.cpu_s, "wall_s": timed.wall_s}))


if __name__ == "__main__":
    main()
