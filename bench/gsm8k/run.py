"""SmolLM2-135M on GSM8K: before SFT, after SFT on generated problems of that kind, and after RL on others of these.

    python bench/gsm8k/run.py [--engine vllm] [--questions-from FILE] [--set model.device=cuda]
    python bench/gsm8k/run.py --smoke [--questions-from FILE]

Questions are the first 200 of the test split, which come from the hub unless FILE has them in the published form. The
problems for SFT and RL are those of problems.py; none of them may occur among the test questions. Each model answers
greedily and four times at temperature 1. All scores are read twice: `accuracy` is the benchmark's own and needs the
tags <answer> and </answer>; `judge-last_number` takes the last number of what the model wrote where there are none,
since a model before SFT has never seen the tags. It is measured in two ways: `base` is shown the tool and the tags by
a system message; `base_alone` has no tool and no tags, only its own chat template and a request to end with a number.

What is finished is kept in `--work` and skipped; an evaluation continues where it was, SFT begins again. Where Ramet's
code has changed since, the folder of what was interrupted is to be removed first. The seconds of a stage are those of
the call that finished it. Raw numbers are in `bench/results/gsm8k_smollm2.json`, of `--smoke`
in `--work`.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/quickstart"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import smollm2
from harness import RESULTS, commit, print_table, write_results
from phases import Phases
from problems import SIZES, write
from real import ROUNDS, Folders, RealQuickstart

from ramet import Task, api, user_prompt
from ramet.cli.terminal import print_problems
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.data.overlap import overlaps
from ramet.errors import ConfigError, RametError
from ramet.evaluate import judge_pass
from ramet.evaluate.agreement import with_verdicts
from ramet.evaluate.compare import task_means
from ramet.evaluate.files import load_results

ROOT = Path(__file__).resolve().parents[2]
NAME = "gsm8k_smollm2"
PROMPT, RESPONSE = 512, 256  # tokens at most, also in RL
EVALUATION = ("rollout.max_concurrent=64", "engine.params.slots=64", "rollout.deadline_s=900")
UNCUT = "top_p: 1.0, top_k: 0, repetition_penalty: 1.0"  # in place of the benchmark's own sampling
SAMPLING = {
    "greedy": ("evaluate.k=1", f"evaluate.sampling={{temperature: 0.0, {UNCUT}}}"),
    "sampled": ("evaluate.k=4", f"evaluate.sampling={{temperature: 1.0, {UNCUT}}}"),
}
BENCHMARKS = ("gsm8k", "files")  # files: generated problems that no model has seen
ALONE = "{question} Think step by step, and end with the answer as a number."
LAST_NUMBER = ("rewards.last_number.use=gsm8k", "rewards.last_number.params.method=flexible")
PAIRS = (("base", "sft"), ("base", "rl"), ("base_alone", "sft"), ("base_alone", "rl"), ("sft", "rl"))
SMALL = {"sft": 8, "sft_held_out": 4, "rl": 8, "generated": 4}  # problems of --smoke
SMALL_RESPONSE = 64


@dataclass(frozen=True, slots=True)
class Arm:
    """A model as it is measured. `teach` makes the model; None: it is there."""

    name: str
    model: Path
    keys: tuple[str, ...]
    teach: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    options: argparse.Namespace
    model: Path  # before SFT
    teacher: RealQuickstart  # whose recipe, folders and SFT these are

    @classmethod
    def of(cls, options: argparse.Namespace) -> Bench:
        model = options.model or smollm2.model_folder(ROOT / "runs/models")
        if not (model / "config.json").is_file():
            raise ConfigError(f"--model: {str(model)!r} is not a Hugging Face model folder")
        response = SMALL_RESPONSE if options.smoke else RESPONSE
        lengths = [f"data.max_prompt_tokens={PROMPT}", f"rollout.max_response_tokens={response}"]
        keys = [f"engine={options.engine}", *lengths]
        if options.engine == "vllm":
            keys.append("engine.params.kv_cache_bytes=2147483648")  # 64 sequences
        if options.smoke:
            keys += ["train.tasks_per_step=1", "train.minibatches=1"]
        keys += options.set
        teaching = argparse.Namespace(seed=options.seed, steps=options.steps, keys=keys)
        return cls(options, model, RealQuickstart(teaching, Folders(options.work, "rl")))

    @property
    def sizes(self) -> Mapping[str, int]:
        return SMALL if self.options.smoke else SIZES

    def run(self) -> int:
        self._keep_settings()
        stages = {"data": self._stage("data", self._data)}
        for arm in self._arms():
            if arm.teach is not None:
                stages[arm.name] = self._stage(arm.name, arm.teach)
            for setting in SAMPLING:
                name = f"{arm.name}-{setting}"
                stages[name] = self._stage(name, partial(self._evaluate, arm, setting))
        differences = [row for setting in SAMPLING for pair in PAIRS for row in self._compare(pair, setting)]
        self._report(stages, differences)
        return 0

    def _arms(self) -> tuple[Arm, ...]:
        folders, taught = self.teacher.folders, ("benchmarks.gsm8k.tools=[python]",)
        prompt = json.dumps(ALONE)
        alone = [(f"benchmarks.{name}.tools=[]", f"benchmarks.{name}.prompt={prompt}") for name in BENCHMARKS]
        return (
            Arm("base", self.model, ("rollout_step.system_prompt=always", *taught)),
            Arm("base_alone", self.model, tuple(chain.from_iterable(alone))),
            Arm("sft", folders.inputs / "sft/model", taught, self._sft),
            Arm("rl", folders.run / "model", taught, self._rl),
        )

    def _stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `work` returns, with commit, seconds and peak memory; what an earlier call kept if there is."""
        file = self.options.work / "stages" / f"{name}.json"
        if file.is_file():
            print(f"{name}: finished before", flush=True)
            kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return kept
        phases = Phases()
        with phases(name, name):
            numbers = work()
        numbers |= {"commit": commit(), "seconds": phases.seconds[name], "peak_gb": phases.peak_gb[name]}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(numbers), encoding="utf-8")
        return numbers

    def _keep_settings(self) -> None:
        """Raise `ConfigError` where `--work` holds stages of other settings."""
        given = {name: str(value) for name, value in vars(self.options).items() if name != "work"}
        file = self.options.work / "settings.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else given
        if changed := [f"{name}={kept.get(name)}" for name in given if kept.get(name) != given[name]]:
            raise ConfigError(f"--work: {file.parent} is of other settings ({', '.join(changed)}); choose another")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")

    def _data(self) -> dict[str, Any]:
        folder = self.teacher.folders.data
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made = write(folder, self.options.seed, self.sizes)
        tasks = [Task(id=str(number), prompt=user_prompt(problem.text)) for number, problem in enumerate(made)]
        config = self.teacher.compose("eval", self.model, *self._measured()).config
        questions = list(Components(config).benchmark("gsm8k").load("test", None))
        if found := overlaps(questions, tasks):
            raise ConfigError(f"problems of problems.py are like questions of the test split: {found}")
        return {"problems": dict(self.sizes), "compared_with_questions": len(questions)}

    def _measured(self) -> tuple[str, ...]:
        """Return the keys of the benchmarks."""
        keys = [f"benchmarks=[{','.join(BENCHMARKS)}]", f"benchmarks.gsm8k.limit={self.options.questions}"]
        keys += [f"benchmarks.files.params.paths=[{self.teacher.folders.data / 'generated.jsonl'}]"]
        path = self.options.questions_from
        return (*keys, *([] if path is None else [f"benchmarks.gsm8k.params.path={path}"]))

    def _sft(self) -> dict[str, Any]:
        for left in self.teacher.folders.inputs.glob("sft*"):
            shutil.rmtree(left)
        return {"held_out_losses": self.teacher.sft_passes(self.model, 1 if self.options.smoke else ROUNDS)}

    def _rl(self) -> dict[str, Any]:
        result = api.run(self.teacher.compose("train", self.teacher.folders.inputs / "sft/model"))
        names = ("reward/mean", "rollout/tool_calls_mean", "time/step_s")
        return {name: [row.get(name) for row in api.metrics(result.run)] for name in names}

    def _evaluate(self, arm: Arm, setting: str) -> dict[str, Any]:
        place = (f"run.root={self.options.work}", f"run.name={arm.name}-{setting}")
        keys = (*place, *self._measured(), *EVALUATION, *SAMPLING[setting], *arm.keys, *self.options.set)
        result = api.run(self.teacher.compose("eval", arm.model, *keys))
        judge_pass.run(result.file, compose(list(LAST_NUMBER), job="judge"))
        body = with_verdicts(*load_results(result.file))
        return {"arm": arm.name, "setting": setting, "results": list(map(_short, body["results"]))}

    def _compare(self, pair: tuple[str, str], setting: str) -> list[dict[str, Any]]:
        """Return what `ramet compare` says of two models, a row for each metric of a benchmark."""
        folders = [str(self.options.work / f"{arm}-{setting}") for arm in pair]
        command = [sys.executable, "-m", "ramet", "compare", *folders, "--format", "json"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        kept = ("benchmark", "metric", "before", "after", "difference", "low", "high", "n_tasks")
        rows = [row for compared in json.loads(said) for row in compared["metrics"]]
        of = {"before_arm": pair[0], "after_arm": pair[1], "setting": setting}
        return [
            {**of, **{key: row[key] for key in kept}, "won": len(row["won"]), "lost": len(row["lost"])} for row in rows
        ]

    def _report(self, stages: Mapping[str, dict[str, Any]], differences: Sequence[dict[str, Any]]) -> None:
        evaluations = [stage for stage in stages.values() if "arm" in stage]
        _print_results(evaluations)
        _print_differences(differences)
        path = self.options.questions_from
        settings = {
            "questions": self.options.questions,
            "questions_from": "the hub" if path is None else path.name,
            "seed": self.options.seed,
            "keys": self.teacher.options.keys,
            "sampling": SAMPLING,
        }
        seconds = {name: stage["seconds"] for name, stage in stages.items()}
        summary = {**{name: stages[name] for name in ("data", "sft", "rl")}, "seconds": seconds}
        commits = " ".join(sorted({str(stage["commit"]) for stage in stages.values()}))
        folder = self.options.work if self.options.smoke else RESULTS
        file = write_results(NAME, settings, [*evaluations, *differences], summary, made_by=commits, folder=folder)
        print(f"raw numbers in {file}; the same by hand, with the tasks that were won and lost:")
        for setting in SAMPLING:
            arms = (str(self.options.work / f"{arm}-{setting}") for arm in ("base", "sft", "rl"))
            print(f"  ramet compare {' '.join(arms)}")


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a benchmark's result, without texts; `scores` are means by task."""
    metrics = {
        metric["metric"]: {
            "avg": metric["avg"],
            "pass": {str(each["k"]): each["estimate"] for each in metric["passes"]},
            "scores": list(task_means(result, metric["metric"]).values()),
        }
        for metric in result["metrics"]
    }
    kept = {key: result[key] for key in ("name", "n_rollouts", "n_judged", "ends", "tools")}
    return {**kept, "metrics": metrics}


def _print_results(evaluations: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            evaluation["arm"],
            evaluation["setting"],
            result["name"],
            *(_text(result["metrics"][metric]["avg"]) for metric in ("accuracy", "judge-last_number")),
            _text(list(result["metrics"]["judge-last_number"]["pass"].values())[-1]),
            f"{result['tools']['share_using'] or 0:.0%}",
            f"{result['ends']['answered'] / result['n_rollouts']:.0%}",
            f"{result['ends']['cut'] / result['n_rollouts']:.0%}",
            f"{evaluation['seconds']:.0f}",
        ]
        for evaluation in evaluations
        for result in evaluation["results"]
    ]
    head = ["model", "setting", "benchmark", "accuracy", "last number", "its pass@k", "tool", "answered", "cut", "s"]
    print_table(head, rows)


def _print_differences(differences: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            f"{row['after_arm']} - {row['before_arm']}",
            *(row[key] for key in ("setting", "benchmark", "metric")),
            f"{row['difference']:+.3f}",
            "none" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}",
            f"{row['won']}, {row['lost']} of {row['n_tasks']}",
        ]
        for row in differences
    ]
    print()
    print_table(["difference", "setting", "benchmark", "metric", "mean", "95 % interval", "tasks won, lost"], rows)


def _text(estimate: Mapping[str, float | None]) -> str:
    mean, half = estimate["mean"], estimate["half_width"]
    return "none" if mean is None else f"{mean:.3f}" if half is None else f"{mean:.3f} ± {half:.3f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="default: torch")
    parser.add_argument("--questions", type=_positive, help="how many of the test split (default: 200)")
    parser.add_argument("--questions-from", type=Path, metavar="FILE", help="the test split (default: from the hub)")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: SmolLM2, which is fetched")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--steps", type=_positive, help="of RL (default: the recipe's 12)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of SFT, RL and evaluation")
    parser.add_argument("--work", type=Path, help="default: runs/gsm8k, with --smoke runs/gsm8k-smoke")
    parser.add_argument("--smoke", action="store_true", help="every stage with few problems, 4 questions and one step")
    options = parser.parse_args()
    options.questions = options.questions or (4 if options.smoke else 200)
    options.steps = options.steps or (1 if options.smoke else None)
    options.work = options.work or ROOT / "runs" / ("gsm8k-smoke" if options.smoke else "gsm8k")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: whole numbers from 1")
    return int(text)


if __name__ == "__main__":  # vLLM's processes import this file
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ramet").setLevel(logging.INFO)
    try:
        sys.exit(Bench.of(_options()).run())
    except RametError as error:
        print_problems(error)
        sys.exit(1)
