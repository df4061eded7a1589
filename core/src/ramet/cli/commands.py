"""The commands: what each does, and where. A command's module is imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.cli.job import JobCommand


@dataclass(frozen=True, slots=True)
class Command:
    """`home`: a module of `ramet.cli`, and its function that takes the arguments and returns an exit code."""

    summary: str
    home: str

    def run(self, arguments: Sequence[str]) -> int:
        """Raises `RametError`."""
        module, _, function = self.home.partition(":")
        code: int = getattr(importlib.import_module(f"ramet.cli.{module}"), function)(arguments)
        return code


JOBS = {
    "train": JobCommand("train", "ramet.train.training", "train a model with reinforcement learning"),
    "sft": JobCommand("sft", "ramet.sft.job", "train a model on traces (supervised fine-tuning)"),
    "eval": JobCommand("eval", "ramet.evaluate.evaluation", "measure a model on benchmarks"),
}
COMMANDS: dict[str, JobCommand | Command] = JOBS | {
    "pipeline": Command("run several jobs in turn, such as SFT, RL, export and evaluation", "pipeline:run"),
    "play": Command("run one prompt with tools, and print every turn", "play:run"),
    "gateway": Command("serve a model to an agent over HTTP, and record every token", "gateway:run"),
    "demo": Command("replay a recorded run and write its report: no torch, no network", "demo:run"),
    "tool": Command("call one tool, or serve tools to an agent, with the settings of a run", "tool:run"),
    "doctor": Command("check this machine and its API keys, or why a run does not learn", "doctor:run"),
    "algorithms": Command("list the presets of algorithm=, with paper and use", "algorithms:run"),
    "recipes": Command("list ready-made experiments, and what they need", "recipes:run"),
    "config": Command("print a configuration, or where a value comes from", "config:run"),
    "check-logprobs": Command("compare the log-probabilities of engine and trainer", "check_logprobs:run"),
    "data": Command("check data files, and make training data of rollouts", "data:run"),
    "benchmarks": Command("list and validate benchmarks, and find them in training data", "benchmarks:run"),
    "runs": Command("list runs with their state, last reward and size, and remove old checkpoints", "runs:run"),
    "checkpoints": Command("list and verify a run's checkpoints", "checkpoints:run"),
    "compare": Command("compare evaluations task by task, or trainings", "results:run_compare"),
    "judge": Command("judge the stored rollouts of an evaluation", "results:run_judge"),
    "report": Command("write an HTML report of a run", "report:run"),
    "plugins": Command("list what is installed, and what failed to load", "plugin_list:run"),
    "export": Command("write a trained policy as a Hugging Face folder", "export:run"),
    "import": Command("write a GGUF file as a Hugging Face folder", "import_gguf:run"),
    "migrate": Command("write a recipe from a launch of another trainer", "migrate:run"),
    "tiny-model": Command("make a small random model for trials", "new:tiny_model"),
    "new": Command("start a plugin package", "new:new"),
    "completion": Command("print a shell completion script for bash, zsh or fish", "completion:run"),
}
GROUPS = {  # of `ramet --help`
    "run": ("train", "sft", "eval", "play", "gateway", "pipeline", "demo"),
    "inspect": ("runs", "report", "compare", "checkpoints", "data", "algorithms", "recipes", "benchmarks", "plugins"),
    "check": ("doctor", "config", "check-logprobs", "tool", "judge"),
    "make": ("export", "import", "migrate", "new", "tiny-model", "completion"),
}
