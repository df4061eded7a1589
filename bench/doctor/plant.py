"""Plant faults in tiny runs, and see whether `ramet doctor RUN` names them.

    python scripts/quickstart --root ROOT --steps 6 --problems 20     # the models and data that runs begin with, once
    python scripts/quickstart --root ROOT --steps 6 --problems 20 --tool python
    RAMET_PLUGINS=faulty PYTHONPATH=bench/doctor python bench/doctor/plant.py --root ROOT [NAME …]

Every fault is a real run with wrong settings, data, tools or rewards (`faults.py`). Results of runs that are made again
replace theirs in `bench/results/doctor.json`; `--again` diagnoses the runs that are there, without making them.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

BENCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "doctor")]

from faults import FAULTS, HEALTHY, Planted  # noqa: E402
from harness import machine  # noqa: E402

from ramet import api  # noqa: E402
from ramet.doctor.diagnosis import diagnose  # noqa: E402
from ramet.engines.torch import model_runner  # noqa: E402
from ramet.engines.torch.sampler import Draw, sample  # noqa: E402
from ramet.errors import RametError  # noqa: E402
from ramet.types import Severity  # noqa: E402

RESULTS = BENCH / "results" / "doctor.json"
STEPS = 6


class Planter:
    """Makes runs below `root`, from what the quickstart left there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made = root / "made"
        self.made.mkdir(exist_ok=True)
        self._take("quickstart_search")

    def _take(self, recipe: str) -> None:
        """Begin from the model and data of this quickstart."""
        self.recipe = recipe
        self.inputs = self.root / f"{recipe}-inputs"
        self.data = self.inputs / "data"

    def run(self, planted: Planted) -> str | None:
        """Make the run; return what ended it early."""
        self._take(planted.recipe)
        folder = self.root / "planted" / planted.name
        if folder.exists():
            shutil.rmtree(folder)
        keys = [
            f"experiment={planted.recipe}",
            f"run.root={folder.parent}",
            f"run.name={planted.name}",
            "trackers=[jsonl]",
            f"model.path={self.model(planted.model)}",
            *self._of_job(planted),
            *(key.replace("{data}", str(self.data)) for key in planted.keys),
        ]
        try:
            with noisy_engine(planted.engine_noise):
                (api.sft if planted.job == "sft" else api.train)(keys)
        except RametError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _of_job(self, planted: Planted) -> list[str]:
        if planted.job == "sft":
            rows = f"sft.data=[{self.data / 'sft.jsonl'}]"
            return [rows, self._corpus(), "sft.trainer.max_steps=60", "sft.trainer.logging_steps=10"]
        own = any("faulty_search" in key for key in planted.keys) or planted.recipe == "quickstart"
        return [f"data.train=[{self.rows(planted.data)}]", f"train.steps={STEPS}", *([] if own else [self._corpus()])]

    def _corpus(self) -> str:
        return f"tools.search.params.corpus={self.data / 'corpus.sqlite'}"

    def model(self, kind: str) -> Path:
        if kind == "direct":
            return self._direct()
        paths = {"taught": self.inputs / "sft/model", "init": self.inputs / "init"}
        return paths.get(kind, self.root / "quickstart_search/model")

    def _direct(self) -> Path:
        """A model that was taught to answer without a call."""
        folder = self.made / "direct"
        if not (folder / "model").exists():
            rows = [json.loads(line) for line in (self.data / "sft.jsonl").read_text().splitlines()]
            for row in rows:
                reply = row["conversations"][1]
                reply["value"] = reply["value"][reply["value"].index("<answer>") :]
            file = self.made / "direct.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            api.sft(
                [
                    "experiment=quickstart_search",
                    f"model.path={self.model('init')}",
                    f"sft.data=[{file}]",
                    self._corpus(),
                    "sft.trainer.max_steps=80",
                    f"run.root={self.made}",
                    "run.name=direct",
                ]
            )
        return folder / "model"

    def rows(self, kind: str) -> Path:
        """The tasks of RL, as they are or with a mistake."""
        rows = [json.loads(line) for line in (self.data / "rl.jsonl").read_text().splitlines()]
        golds = [row["answer"] for row in rows]
        if kind == "rl":
            return self.data / "rl.jsonl"
        if kind == "wordy_golds":
            rows = [row | {"answer": f"The answer is {row['answer']}"} if i % 2 else row for i, row in enumerate(rows)]
        elif kind == "shuffled_golds":
            random.Random(1).shuffle(golds)
            rows = [row | {"answer": gold} for row, gold in zip(rows, golds, strict=True)]
        elif kind == "two_sources":
            other = [row | {"answer": "see the key", "data_source": "club"} for row in rows[: len(rows) // 2]]
            rows = [*other, *rows[len(rows) // 2 :]]
        file = self.made / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file


def noisy_engine(deviation: float) -> AbstractContextManager[Any]:
    """Have the engine compute other logits than the trainer, as one of a lower precision does."""

    def noisy(logits: torch.Tensor, draw: Draw) -> Any:
        return sample(logits + deviation * torch.randn_like(logits), draw)

    return patch.object(model_runner, "sample", noisy) if deviation else nullcontext()


def judged(planted: Planted, folder: Path) -> dict[str, Any]:
    """What the doctor says of a run, and whether that is right."""
    findings = diagnose(folder)
    names = [finding.name for finding in findings]
    wrong = [finding.name for finding in findings if finding.severity is Severity.PROBLEM]
    passed = any(name in planted.expects for name in names[:2]) if planted.expects else not wrong
    said = [{"name": f.name, "severity": str(f.severity), "what": f.what, "text": f.text} for f in findings]
    return {"expects": list(planted.expects), "findings": said, "passed": passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where the quickstart was made")
    parser.add_argument("--again", action="store_true", help="diagnose the runs that are there")
    parser.add_argument("names", nargs="*", help="of runs; default: all")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    planter = Planter(options.root.resolve())
    failed = 0
    for planted in (*FAULTS, *HEALTHY):
        folder = planter.root / "planted" / planted.name
        if (options.names and planted.name not in options.names) or (options.again and not folder.exists()):
            continue
        began = time.perf_counter()
        earlier = results["runs"].get(planted.name, {})
        ended = earlier.get("ended") if options.again else planter.run(planted)
        seconds = earlier.get("seconds") if options.again else round(time.perf_counter() - began, 1)
        if ended and not (folder / "manifest.json").exists():
            sys.exit(f"{planted.name}: {ended}")
        result = judged(planted, folder)
        failed += not result["passed"]
        results["runs"][planted.name] = result | {"seconds": seconds, "ended": ended}
        said = "; ".join(f"{finding['name']} ({finding['severity']})" for finding in result["findings"]) or "nothing"
        print(f"{'ok  ' if result['passed'] else 'FAIL'} {planted.name}: {said}  [{seconds} s]", flush=True)
        RESULTS.write_text(json.dumps(results | {"machine": machine()}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
