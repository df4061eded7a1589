"""Forward and backward passes with every prefix computed once, and as often as it occurs; one thread.

    python bench/prefix_sharing/run.py [--repeats 7] [--records RUN/rollouts]

Groups of three shapes, and those of the last step of a recorded run if one is named. Both sides have the same model and
rows and must find the same log-probabilities and gradients; they take turns, and the first round is not counted. The
side `separate` is `policy.share_prefixes=never`: rows of similar lengths side by side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results
from prefix_sharing.groups import VOCABULARY, Shape, recorded

from ramet.algorithms.logprobs import Entropy
from ramet.models.tiny import tiny_model
from ramet.policy.batching.packing import MicroBatch, model_cost
from ramet.policy.batching.partition import RankLayout, own_micro_batches, own_shared_micro_batches
from ramet.policy.batching.rows import Row
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.shared_attention import install_shared_attention

SHAPES = (
    Shape("GRPO, prompt 200, responses of 100", 256, n_groups=2, n_rollouts=8, n_forks=0, prompt=200, response=100),
    Shape("ARPO, prompt 100, responses of 200, 4 of 8 forked", 256, 2, 8, n_forks=4, prompt=100, response=200),
    Shape("the same with hidden size 512", 512, 2, 8, n_forks=4, prompt=100, response=200),
)
BUDGET = 16384  # policy.max_microbatch_tokens
GOAL = 0.85  # of the ratio of tokens
SIDES = ("separate", "shared")


def model_of(hidden: int) -> PreTrainedModel:
    model = tiny_model(
        "qwen2",
        vocabulary=VOCABULARY,
        hidden=hidden,
        intermediate=3 * hidden,
        layers=4,
        heads=hidden // 32,
        kv_heads=hidden // 64,
        attention="sdpa",
        tie_word_embeddings=True,
    )
    install_shared_attention(model)
    return model


def micro_batches(rows: Sequence[Row], hidden: int) -> dict[str, list[MicroBatch]]:
    cost, alone = model_cost(hidden, torch.device("cpu")), RankLayout(rank=0, world_size=1)
    return {
        "separate": own_micro_batches(rows, alone, budget=BUDGET, cost=cost, row_cost=cost),
        "shared": own_shared_micro_batches(rows, alone, budget=BUDGET, cost=cost),
    }


def passes(model: PreTrainedModel, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of all rows in their order, and the gradient of a loss that is another for every row."""
    model.zero_grad()
    found: dict[int, Tensor] = {}
    for batch in batches:
        tokens = LogprobModel(model)(batch, 1.0, Entropy.DETACHED)
        pieces = dict(zip(batch.rows, torch.split(tokens.logprobs, list(batch.lengths)), strict=True))
        loss = sum(((1 + i % 3) * piece.mean() for i, piece in pieces.items()), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call]
        found |= {i: piece.detach() for i, piece in pieces.items()}
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat([found[i] for i in sorted(found)]), gradient


def compare(name: str, hidden: int, rows: Sequence[Row], repeats: int) -> list[dict[str, Any]]:
    """All rounds of one shape. Raises if the two sides do not agree."""
    model, batches = model_of(hidden), micro_batches(rows, hidden)
    runs = []
    for repeat in range(repeats + 1):
        results = {}
        for side in SIDES:
            with measured() as one:
                results[side] = passes(model, batches[side])
            tokens = sum(batch.n_tokens for batch in batches[side])
            runs.append({"shape": name, "side": side, "tokens": tokens, "wall_s": one.wall_s, "cpu_s": one.cpu_s})
            runs[-1] |= {"load": one.load, "counted": repeat > 0}
        torch.testing.assert_close(results["shared"][0], results["separate"][0], rtol=1e-5, atol=1e-5)
        gradient, expected = results["shared"][1], results["separate"][1]
        assert float((gradient - expected).norm() / expected.norm()) < 1e-5, name
    return runs


def summary_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratios of rounds, of two sides that were measured one after the other."""
    sides = [[run for run in runs if run["side"] == side and run["counted"]] for side in SIDES]
    tokens = sides[0][0]["tokens"] / sides[1][0]["tokens"]
    ratios = {key: [a[key] / b[key] for a, b in zip(*sides, strict=True)] for key in ("wall_s", "cpu_s")}
    return {
        "token_ratio": tokens,
        "wall_ratio": spread(ratios["wall_s"]),
        "cpu_ratio": spread(ratios["cpu_s"]),
        "cpu_of_token_ratio": spread(ratios["cpu_s"])["median"] / tokens,
        "wall_of_token_ratio": spread(ratios["wall_s"])["median"] / tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--records", type=Path, help="the folder `rollouts` of a run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(shape.name, shape.hidden, shape.rows(seed=1)) for shape in SHAPES]
    if options.records is not None:
        cases.append(("recorded groups", 128, recorded(options.records)))
    runs, summary, table = [], {}, []
    for name, hidden, rows in cases:
        own = compare(name, hidden, rows, options.repeats)
        runs += own
        found = summary[name] = summary_of(own)
        for side in SIDES:
            times = [run for run in own if run["side"] == side and run["counted"]]
            last = side == SIDES[-1]
            table.append(
                [
                    f"{name}, {side}",
                    f"{times[0]['tokens']:,}",
                    shown([run["wall_s"] for run in times]),
                    shown([run["cpu_s"] for run in times]),
                    f"{found['token_ratio']:.2f}" if last else "",
                    f"{found['wall_ratio']['median']:.2f}" if last else "",
                    f"{found['cpu_ratio']['median']:.2f}" if last else "",
                    f"{found['cpu_of_token_ratio']:.2f}" if last else "",
                ]
            )
    head = ["groups", "tokens", "wall s", "CPU s", "fewer tokens", "faster: wall", "CPU", "CPU of tokens"]
    print_table(head, table)
    path = write_results("prefix_sharing", {"budget": BUDGET, "goal": GOAL, "repeats": options.repeats}, runs, summary)
    print(f"goal: {GOAL} of the ratio of tokens; {path}")


if __name__ == "__main__":
    main()
