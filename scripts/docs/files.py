"""The page about the files of a run. tests/test_docs_reference.py compares it with those of real runs."""

from __future__ import annotations

# File -> (jobs that write it, what it is, what reads it).
FILES = {
    "manifest.json": ("all", "what the run is: seed, versions, data, plugins, processes; fields below", "JSON"),
    "config.yaml": ("all", "the complete configuration; values of the environment stay `${oc.env:NAME}`", "YAML"),
    "overrides.txt": ("all", "what was typed, one key a line", "text"),
    "metrics.jsonl": (
        "all",
        "one JSON object a line: `step`, `time`, and [metrics](../metrics.md)",
        "`ramet.api.metrics`",
    ),
    "run.log": ("all", "what the console showed, with times", "text"),
    "LOCK": ("all", "`host`, `pid` and `started` of the process that works on the run; empty when none does", "JSON"),
    "rollouts/": (
        "train",
        "`step_000012.jsonl.gz` of a step (with `cluster=ray` the folder `step_000012/`), `valid_000012.jsonl.gz` of a "
        "validation: [records](../records.md)",
        "`ramet.api.rollouts`",
    ),
    "checkpoints/": (
        "train, sft",
        "`step_000010/`: weights, optimiser, random states, place in the data; `MANIFEST.json` has the size and "
        "sha256 of every file, `SCORE.json` the validation that chose it",
        "`ramet checkpoints`",
    ),
    "model/": ("train, sft", "the trained model, a Hugging Face folder", "transformers, vLLM, `model.path`"),
    "adapter/": ("sft", "with LoRA: the adapter, a PEFT folder", "peft"),
    "sft.json": ("sft", "rows, rows left out, tokens, steps, seconds, loss: [SFT](../sft.md)", "JSON"),
    "sft_loss.png": ("sft", "loss and learning rate over the steps", "an image"),
    "results.json": (
        "eval",
        "statistics of an evaluation, with the rules that held: [its fields](../evaluation.md#what-it-writes)",
        "`ramet compare --format json`",
    ),
    "results.tasks.jsonl": ("eval", "one line for each task: prompt, answers, scores", "JSON lines"),
    "results.rollouts.jsonl.gz": (
        "eval",
        "the rollouts of each task: [records](../records.md)",
        "`ramet.api.rollouts`",
    ),
    "results.json.partial.jsonl": ("eval", "tasks that are done, until the evaluation is complete", "a resume"),
    "report.html": ("`ramet report`", "curves and rollouts as one page", "a browser"),
    "services/": ("all", "files of components: caches of judges and searches", "the component"),
    "wandb/, tensorboard/": ("all", "of the trackers of these names", "the tracker"),
}
# Field of manifest.json -> what it is.
MANIFEST = {
    "format": "1; another number is refused",
    "id": "of the run, for trackers; kept when it is resumed",
    "job": "`train`, `sft` or `eval`",
    "seed": "`run.seed`",
    "deterministic": "`run.deterministic`",
    "resume_level": "what a resume reproduces: exact state, and exact numbers or numbers within noise",
    "sampling": "what the seeds of requests decide; null: nothing is sampled",
    "git": "`sha` of the working directory and whether it was `dirty`; null outside of a repository",
    "versions": "Python, platform and packages",
    "plugins": "as `ramet plugins` lists them: `name`, `distribution`, `version`, `contract`, `offers`, `broken`, and "
    "`code`, the sha256 of the package's code",
    "data": "by role (`train`, `valid`): `files`, `fingerprint` of the tasks in order, and the numbers `tasks`, "
    "`skipped` (bad rows), `repaired`, `too_long`, `by_difficulty`",
    "model": "fingerprint of the model's folder",
    "hub": "names of the Hugging Face hub, and the commit that was used",
    "prompt": "how the model is asked: what a model card needs",
    "files": "sha256 of files that options name",
    "attempts": "one entry for each process: `started`, `host`, `pid`, `argv`, `ended`, and `status` (`running`, "
    "`done`, `failed`, `interrupted`; a killed process stays `running`)",
}


def files_page() -> str:
    """Return the page as Markdown."""
    files = [f"| `{name}` | {jobs} | {text} | {reader} |" for name, (jobs, text, reader) in FILES.items()]
    fields = [f"| `{name}` | {text} |" for name, text in MANIFEST.items()]
    return "\n".join(
        [
            "# Files of a run",
            "",
            "Every job writes into `runs/NAME` (`run.root`, `run.name`). A file appears complete or not at all.",
            "[From Python](../python.md) reads them as objects.",
            "",
            "| file | written by | what it is | read by |",
            "|---|---|---|---|",
            *files,
            "",
            "## manifest.json",
            "",
            "| field | what it is |",
            "|---|---|",
            *fields,
            "",
        ]
    )
