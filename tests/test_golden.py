"""`tests/golden/check.py`: agrees where it says so, lists what is missing, and sees a loss that is wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ramet.algorithms.advantages.gae import Gae
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.helpers.group_scores import rollout_scores
from ramet.plugins import load_plugins
from ramet.plugins.registry import Registry
from ramet.types import AdvantageInputs, AdvantageOutput, LossInputs, LossOutput, Need

FOLDER = Path(__file__).parent / "golden"
VALUES = FOLDER / "values"
HERE = {
    "adaptive_kl_controller", "aepo_branch", "aepo_initial_rollouts", "aepo_policy_loss", "aepo_policy_loss_scalar",
    "agg_loss", "apply_kl_penalty", "arpo_branch", "rollout.aepo", "rollout.arpo", "rollout_entropy",
    "entropy_from_logits", "gae", "grpo", "grpo_passk",
    "kl_penalty", "logprobs_from_logits", "masked_whiten", "opo", "policy_loss", "policy_loss_scalar",
    "deep_research.compute_score", "deep_research.extract_answer", "deep_research.get_f1_score",
    "deep_research.normalize_answer", "deep_research.validate_format", "evaluation.llm_judge.evaluate",
    "evaluation.math_equivalence.is_equiv", "evaluation.metrics.evaluate_math_prediction",
    "evaluation.metrics.evaluate_qa_prediction", "evaluation.utils.extract_answer", "gsm8k.compute_score",
    "math.compute_score", "math.is_equiv", "math_dapo.compute_score", "search_r1_em.compute_score",
    "search_r1_em.compute_score_subem",
    "python_tool.execute", "reinforce_pp", "remax", "rfpp_baseline", "rloo", "value_loss",
}  # fmt: skip


MASKED_ROW = (
    "known difference: known_differences.json, case 2 (a fully masked row): output is 1.0, expected 'nan'; a row "
    "without a trained token: its mean is 0 here and 0/0 in the release"
)
TIE = (
    "known difference: known_differences.json, case 1 (the ratio is the dual clip): output.grad_log_prob[0][0] is 3.0, "
    "expected 1.5; a tie between -A r and its dual clip: ours takes the gradient of the first, the release half of each"
)


@pytest.fixture(scope="module")
def checker() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("golden_check", FOLDER / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


def lines_of(text: str) -> dict[str, tuple[int, int, int]]:
    """Function -> passed, failed, not implemented."""
    rows = [line.rpartition("  ") for line in text.splitlines() if line.endswith("not implemented")]
    return {name.strip(): tuple(int(word.split()[0]) for word in counts.split(", ")) for name, _, counts in rows}  # type: ignore[misc]


def test_everything_that_is_implemented_agrees_with_the_reference(checker: ModuleType, capsys) -> None:
    assert checker.main([]) == 0
    out = capsys.readouterr().out
    found = lines_of(out)
    assert {name for name, (passed, _, _) in found.items() if passed} == HERE
    assert all(failed == 0 for _, failed, _ in found.values())
    assert sum(missing for name, (_, _, missing) in found.items() if name in HERE) == 0
    assert found["hostile_snippets"][2]
    known = [line.strip() for line in out.splitlines() if "known difference" in line]
    assert [line for line in known if "tools.jsonl" not in line] == [MASKED_ROW, TIE]
    assert sum(line.endswith("tells time-outs in Chinese") for line in known) == 12  # of the Python tool


def test_a_known_difference_that_no_longer_differs_fails(checker: ModuleType, offer, capsys) -> None:
    offer(load_plugins().registries.policy_losses, "ppo_clip", SplitsTies)
    assert checker.main([str(VALUES / "known_differences.json")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "agg_loss            0 passed, 0 failed, 0 not implemented",
        f"    {MASKED_ROW}",
        "policy_loss_scalar  0 passed, 1 failed, 0 not implemented",
        "    known_differences.json, case 1 (the ratio is the dual clip): no longer differs from the release, but is "
        "listed (a tie between -A r and its dual clip: ours takes the gradient of the first, the release half of each)",
    ]


def test_a_known_difference_excuses_nothing_else(checker: ModuleType, offer, capsys) -> None:
    offer(load_plugins().registries.policy_losses, "ppo_clip", ForgetsTheGradient)
    assert checker.main([str(VALUES / "known_differences.json")]) == 1
    assert capsys.readouterr().out.splitlines()[3] == (
        "    known_differences.json, case 1 (the ratio is the dual clip): neither the release's nor as listed (a tie "
        "between -A r and its dual clip: ours takes the gradient of the first, the release half of each): "
        "output.grad_log_prob[0][0] is 0.0, expected 3.0"
    )


class WrongSign(PpoClip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return super().__call__(dataclasses.replace(batch, advantages=-batch.advantages))


class NeverClips(PpoClip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        output = super().__call__(batch)
        ratio = (batch.logprobs - batch.old_logprobs).exp()
        return dataclasses.replace(output, per_token=-batch.advantages * ratio)


class ForgetsTheGradient(PpoClip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        output = super().__call__(batch)
        return dataclasses.replace(output, per_token=output.per_token.detach() + 0 * batch.logprobs)


class SplitsTies(PpoClip):
    """As the release: the minimum of the clipped loss and the dual clip."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        output = super().__call__(batch)
        free = -batch.advantages * (batch.logprobs - batch.old_logprobs).exp()
        return dataclasses.replace(output, per_token=torch.minimum(free, -3.0 * batch.advantages))


class WrongClipFraction(PpoClip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        output = super().__call__(batch)
        return dataclasses.replace(output, metrics={**output.metrics, "clip_fraction": torch.ones(len(batch.mask))})


class KeepsTheMean:
    """As the estimator of that name, without its baseline."""

    def __init__(self, *config: Any) -> None:
        pass

    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch).float()[:, None]
        return AdvantageOutput(advantages=scores * batch.mask)


@pytest.fixture
def offer(register: Callable[..., None]) -> Callable[[Registry[Any], str, Any], None]:
    """Another factory under a registered name, with the same options."""
    return lambda registry, name, factory: register(registry.group, name, factory, config=registry.get(name).config)


@pytest.mark.parametrize("wrong", [WrongSign, NeverClips, ForgetsTheGradient, WrongClipFraction])
def test_a_wrong_loss_is_seen(checker: ModuleType, offer, capsys, wrong: type[PpoClip]) -> None:
    offer(load_plugins().registries.policy_losses, "ppo_clip", wrong)
    assert checker.main([str(VALUES / "algorithms.json")]) == 1
    found = lines_of(capsys.readouterr().out)
    assert {name for name, (_, failed, _) in found.items() if failed} <= {
        "aepo_policy_loss",
        "policy_loss",
        "policy_loss_scalar",
    }
    assert found["policy_loss"][1] > 0


class ForgetsTheCritic(Gae):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.values is not None
        return super().__call__(dataclasses.replace(batch, values=torch.zeros_like(batch.values)))


class FillsThePadding(Gae):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        output = super().__call__(batch)
        return dataclasses.replace(output, advantages=torch.where(batch.mask, output.advantages, 1.0))


@pytest.mark.parametrize("wrong", [ForgetsTheCritic, FillsThePadding])
def test_a_wrong_use_of_the_critic_is_seen(checker: ModuleType, offer, capsys, wrong: type[Gae]) -> None:
    offer(load_plugins().registries.advantages, "gae", wrong)
    assert checker.main([str(VALUES / "algorithms.json")]) == 1
    assert lines_of(capsys.readouterr().out)["gae"] == (0, 3, 0)


def test_a_wrong_advantage_is_seen(checker: ModuleType, offer, capsys) -> None:
    names = {
        "grpo": "grpo", "rloo": "rloo", "opo": "opo", "remax": "remax", "grpo_passk": "grpo_passk",
        "reinforce_pp": "reinforce_pp", "reinforce_pp_baseline": "rfpp_baseline",
    }  # fmt: skip
    for name in names:
        offer(load_plugins().registries.advantages, name, KeepsTheMean)
    assert checker.main([str(VALUES / "algorithms.json")]) == 1
    out = capsys.readouterr().out
    assert {name for name, (_, failed, _) in lines_of(out).items() if failed} == set(names.values())
    assert "algorithms.json, case 3 (two groups): output.advantages[0][0] is" in out


def test_values_agree_within_the_tolerance_and_texts_exactly(checker: ModuleType) -> None:
    differs = checker.difference
    assert differs(1.0 + 5e-7, 1) is None and differs(1e9 + 100, 1e9) is None
    assert differs(1.00001, 1) == "output is 1.00001, expected 1"
    assert differs(float("nan"), "nan") is None and differs(float("-inf"), "-inf") is None
    assert differs("nan", "nan") is None
    assert differs(0.0, "nan") is not None
    assert differs(True, 1) is not None and differs(1, True) is not None
    assert differs(" a", "a") is not None
    assert differs({"a": [1, 2]}, {"a": [1, 3]}) == "output.a[1] is 2, expected 3"
    assert differs({"a": 1}, {"a": 1, "b": 2}) is not None
    assert differs([1], [1, 2]) is not None


def test_functions_that_nobody_adapts_are_listed_as_not_implemented(checker: ModuleType, tmp_path: Path, capsys):
    path = tmp_path / "new.jsonl"
    path.write_text('{"function": "brand_new", "input": 1, "output": 2}\n\n')
    assert checker.main([str(path)]) == 0
    assert capsys.readouterr().out == "brand_new  0 passed, 0 failed, 1 not implemented\n"


def test_what_raises_fails_unless_the_reference_raised_too(checker: ModuleType, tmp_path: Path, capsys):
    row = {"function": "kl_penalty", "input": {"logprob": [[0.0]], "ref_logprob": [[0.0]], "kind": "no such kind"}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**row, "raises": "NotImplementedError"}) + "\n" + json.dumps({**row, "output": [[0]]}))
    assert checker.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "kl_penalty  1 passed, 1 failed, 0 not implemented" in out
    assert "rows.jsonl, line 2: ValueError: 'no such kind'" in out


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}', '{"cases": [{"function": "grpo"}]}'])
def test_a_file_of_another_form_is_refused(checker: ModuleType, tmp_path: Path, capsys, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert checker.main([str(path)]) == 2
    assert f"error: {path}: not a file of golden values" in capsys.readouterr().err


def test_the_note_lists_every_file_of_values_and_they_stay_small() -> None:
    files = [path for path in VALUES.iterdir() if path.name != "README.md"]
    listed = re.findall(r"^\| `([\w.]+)` \|", (VALUES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in files)
    assert sum(path.stat().st_size for path in files) < 700_000
