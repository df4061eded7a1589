"""Verdicts of judges on the same rollouts: as metrics of the results, and how often two judges agree."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.header import plain
from ramet.evaluate.statistics import CORRECT
from ramet.helpers.openai.exchanges import ChatExchange

logger = logging.getLogger(__name__)
JUDGES = ".judge-"  # in the name of a judge's file, before the judge's own


@dataclass(slots=True)
class Verdicts:
    """Scores by benchmark, task and rollout, and what models were asked for them. What was not judged is not in it."""

    _scores: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    _asked: dict[tuple[str, str], list[ChatExchange]] = field(default_factory=dict)

    def add(self, benchmark: str, task: str, scores: Mapping[str, float], asked: Sequence[ChatExchange] = ()) -> None:
        self._scores.setdefault((benchmark, task), {}).update(scores)
        self._asked.setdefault((benchmark, task), []).extend(asked)

    def add_line(self, line: Mapping[str, Any]) -> None:
        """One of `lines`."""
        asked = [
            ChatExchange.from_body(exchange) for exchange in line.get("asked", ())
        ]  # files of earlier versions lack it
        self.add(line["benchmark"], line["task"], line["scores"], asked)

    def of(self, benchmark: str, task: str) -> Mapping[str, float]:
        """Return the scores of a task by rollout."""
        return self._scores.get((benchmark, task), {})

    def asked(self, benchmark: str, task: str) -> Sequence[ChatExchange]:
        """Prompts and raw answers, over all rollouts of the task."""
        return self._asked.get((benchmark, task), ())

    @property
    def n_asked(self) -> int:
        return sum(map(len, self._asked.values()))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the verdicts as JSON, in a fixed order."""
        for (benchmark, task), scores in sorted(self._scores.items()):
            asked = [plain(asdict(exchange)) for exchange in self.asked(benchmark, task)]
            yield {"benchmark": benchmark, "task": task, "scores": scores, "asked": asked}

    def flat(self) -> dict[tuple[str, str, str], float]:
        return {(*key, rollout): score for key, scores in self._scores.items() for rollout, score in scores.items()}

    @classmethod
    def of_results(cls, body: Mapping[str, Any]) -> Verdicts:
        """The main metric of every benchmark of a results file."""
        verdicts = cls()
        for result in body["results"]:
            main = result["metrics"][0]["metric"]
            for task in result["tasks"]:
                scores = {r["id"]: s for r in task["rollouts"] if (s := r["scores"].get(main)) is not None}
                verdicts.add(result["name"], task["task"], scores)
        return verdicts


def read_judge(file: Path) -> tuple[dict[str, Any], Verdicts]:
    """The content of a judge's finished file, and the verdicts in it. Raises `ConfigError`."""
    verdicts = Verdicts()
    try:
        body: dict[str, Any] = json.loads(file.read_text(encoding="ascii"))
        for line in body["verdicts"]:
            verdicts.add_line(line)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: not a file of verdicts: {error!r}") from error
    return body, verdicts


def judge_files(file: Path) -> Iterator[Path]:
    """Yield the files that judges wrote next to the results `file`."""
    yield from sorted(file.parent.glob(f"{file.name.removesuffix('.json')}{JUDGES}*.json"))


def with_verdicts(file: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the results `file` with a metric `judge-NAME` for each judge of it.

    A judge of other rollouts, as those before the evaluation was topped up, is left out, which is logged. Raises
    `ConfigError` for a judge's file that cannot be read.
    """
    results = [dict(result) for result in body["results"]]
    for path in judge_files(file):
        said, verdicts = read_judge(path)
        if said["rollouts"] != (body.get("rollouts") or {}).get("sha256"):
            logger.warning("%s: is of other rollouts than %s, and left out; judge again", path, file.name)
            continue
        metric = f"judge-{said['judge']}"
        summaries = {result["name"]: result["metrics"][0] for result in said["results"]}
        for result in results:
            if result["name"] in summaries:
                result["metrics"] = [*result["metrics"], {**summaries[result["name"]], "metric": metric}]
                result["tasks"] = [
                    _with_scores(task, metric, verdicts.of(result["name"], task["task"])) for task in result["tasks"]
                ]
    return {**body, "results": results}


def _with_scores(task: Mapping[str, Any], metric: str, scores: Mapping[str, float]) -> dict[str, Any]:
    rollouts = [
        {**rollout, "scores": {**rollout["scores"], metric: scores.get(rollout["id"])}} for rollout in task["rollouts"]
    ]
    return {**task, "rollouts": rollouts}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAgreement:
    """Agreement of two judges, over the rollouts that both judged; right is a score of 1."""

    n: int
    both_right: int
    both_wrong: int

    first_alone: int  # right for the first, wrong for the second
    second_alone: int

    @property
    def share(self) -> float | None:
        """Share of rollouts with the same verdict; None where both judges judged none."""
        return (self.both_right + self.both_wrong) / self.n if self.n else None

    @property
    def kappa(self) -> float | None:
        """JudgeAgreement beyond chance (Cohen 1960); None where both judges always say the same."""
        if self.share is None:
            return None
        first, second = (self.both_right + self.first_alone) / self.n, (self.both_right + self.second_alone) / self.n
        chance = first * second + (1 - first) * (1 - second)
        return None if chance == 1 else (self.share - chance) / (1 - chance)


def agreement(first: Verdicts, second: Verdicts) -> JudgeAgreement:
    first_scores, second_scores = first.flat(), second.flat()
    pairs = [
        (first_scores[key] >= CORRECT, second_scores[key] >= CORRECT) for key in first_scores if key in second_scores
    ]
    return JudgeAgreement(
        n=len(pairs),
        both_right=pairs.count((True, True)),
        both_wrong=pairs.count((False, False)),
        first_alone=pairs.count((True, False)),
        second_alone=pairs.count((False, True)),
    )
