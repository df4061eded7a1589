"""The update: too large, too small, held by the KL, not finite; a clip that never acts; engine and trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import finding, finite, mean, number, percent, rises, severity, shown
from ramet.types import Finding, Severity, StoredRun

PPO_CLIPS = frozenset({"ppo_clip", "aepo"})  # policy losses with PPO's clip of a token's ratio


def too_large(run: StoredRun) -> Iterator[Finding]:
    """One step's updates move the policy too far."""
    kl, clipped = _largest(run, "train/approx_kl"), _largest(run, "train/clip_fraction")
    clipped = 0.0 if run.option("policy_loss.name") == "gspo" else clipped  # a range of 0.0004 clips much by design
    levels = severity(kl, t.STEP_KL_LOOK, t.STEP_KL_WRONG), severity(clipped, t.CLIPPED_LOOK, t.CLIPPED_WRONG)
    level = next((kind for kind in (Severity.PROBLEM, Severity.WARNING) if kind in levels), None)
    if level is None:
        return
    yield finding(
        "update-large",
        Severity.WARNING if rises(run) else level,
        "the updates are too large",
        f"in one step the policy moves by up to {kl:.3g} nats per token (train/approx_kl)"
        + (f", {percent(clipped)} of the tokens are clipped" if clipped else "")
        + (f", the ratio reaches {_largest(run, 'train/ratio_max'):.3g}" if run.values("train/ratio_max") else "")
        + f"; policy.lr={shown(run, 'policy.lr')}, {_largest(run, 'train/optimizer_steps'):.0f} optimiser steps",
        "policy.lr (a tenth), train.minibatches and train.epochs (fewer), policy.grad_clip",
    )


def too_small(run: StoredRun) -> Iterator[Finding]:
    """The updates change nothing, although there is something to learn."""
    rates = finite(run, "train/lr")
    signal = 1.0 - (mean(run.values("group/no_signal_share")) or 0.0)
    if not rates or signal < 1.0 - t.NO_SIGNAL_WRONG:
        return
    several = _largest(run, "train/optimizer_steps") > 1 and run.option("train.old_logprobs", "trainer") == "trainer"
    ratio = _largest(run, "train/ratio_max")
    still = ratio != 0.0 and abs(ratio - 1.0) < t.STILL_RATIO and (several or _from_engine(run))
    steps = max(len(rates), int(number(run, "train.steps")))
    warming = number(run, "policy.warmup_steps") >= t.WARMUP_TIMES * steps and not rises(run)
    if max(rates) > t.SMALLEST_LR and not still and not warming:
        return
    moved = f"; no ratio differs from 1 by more than {abs(ratio - 1.0):.1g}" if still else ""
    if warming:
        moved += f"; policy.warmup_steps={run.option('policy.warmup_steps')}, and the run has {steps} steps"
    yield finding(
        "update-small",
        Severity.PROBLEM,
        "the updates change nothing",
        f"the learning rate is {max(rates):.2g} at most (policy.lr={shown(run, 'policy.lr')}){moved}",
        "policy.lr (1e-6 is usual for all weights, 1e-5 for LoRA), policy.schedule, policy.warmup_steps",
    )


def _from_engine(run: StoredRun) -> bool:
    """Whether the ratio compares the weights with the engine's, with several updates of a batch."""
    return run.option("train.old_logprobs") == "engine" and _largest(run, "train/optimizer_steps") > 1


def kl_coef(run: StoredRun) -> Iterator[Finding]:
    """The coefficient of the KL outweighs the rewards, and the policy stays near the reference."""
    coef = max([*finite(run, "train/kl_coef"), number(run, "train.kl_coef")])
    level = severity(coef, t.KL_COEF_LOOK, t.KL_COEF_WRONG)
    if level is None or any(kl >= t.REFERENCE_KL_LOOK for kl in finite(run, "train/kl_reference")[-1:]):
        return
    kl = finite(run, "train/kl_reference") or finite(run, "train/kl_reward")
    yield finding(
        "kl-coef",
        Severity.WARNING if rises(run) else level,
        "the KL holds the policy",
        f"train.kl_coef is {coef:g}"
        + (f"; the KL to the reference is {kl[-1]:.2g} nats per token in the last step" if kl else "")
        + f"; the reward {'rises' if rises(run) else 'does not rise'}",
        "train.kl_coef (0.001 to 0.1 are published, 0 loads no reference), or train.kl_target",
    )


def kl_grows(run: StoredRun) -> Iterator[Finding]:
    """The policy runs away from its reference."""
    kl = finite(run, "train/kl_reference")
    level = severity(kl[-1], t.REFERENCE_KL_LOOK, t.REFERENCE_KL_WRONG) if kl else None
    if level is not None:
        yield finding(
            "kl-grows",
            Severity.WARNING if rises(run) else level,
            "the policy runs away from the reference",
            f"train/kl_reference is {kl[0]:.2g} nats per token in the first step and {kl[-1]:.2g} in the last",
            "policy.lr (lower), train.kl_coef (higher) or train.kl_target",
        )


def not_finite(run: StoredRun) -> Iterator[Finding]:
    """Updates are skipped, or the loss is not a number."""
    done, skipped = sum(run.values("train/optimizer_steps")), sum(run.values("train/skipped_updates"))
    level = severity(skipped / max(1.0, done + skipped), t.SKIPPED_LOOK, t.SKIPPED_WRONG)
    broken = any(not math.isfinite(v) for name in ("train/loss", "sft/loss") for v in run.values(name))
    if level is None and not broken:
        return
    yield finding(
        "not-finite",
        Severity.PROBLEM if broken else level or Severity.WARNING,
        "the loss is not finite",
        f"{skipped:.0f} optimiser steps were skipped and {done:.0f} done"
        + ("; the loss of a step is not a number" if broken else ""),
        "policy.lr (lower), model.dtype=bfloat16 or float32, policy.grad_clip; the model's weights, the loss",
    )


def engine_gap(run: StoredRun) -> Iterator[Finding]:
    """Engine and trainer give the same tokens different log-probabilities."""
    gap = mean(run.values("train/engine_gap_mean")) or 0.0
    entropy = mean(run.values("rollout/entropy"))
    least = t.GAP_LOOK if entropy is None else max(t.GAP_LEAST, min(t.GAP_LOOK, t.GAP_OF_ENTROPY * entropy))
    level = severity(gap, least, t.GAP_WRONG)
    if level is not None:
        yield finding(
            "engine-gap",
            level,
            "engine and trainer disagree",
            f"their log-probabilities differ by {gap:.3g} nats per token on average, by "
            f"{_largest(run, 'train/engine_gap_max'):.3g} at most (train/engine_gap_mean)",
            "find where with ramet check-logprobs; model.dtype, engine.params (quantisation, precision), the chat "
            "template; meanwhile train.tis_cap",
        )


def clip_inert(run: StoredRun) -> Iterator[Finding]:
    """No token is ever clipped, although ratios go far or the range is too wide to act. Only of PPO's clip."""
    clipped, ratio = finite(run, "train/clip_fraction"), finite(run, "train/ratio_p99")
    keys = [f"policy_loss.params.{name}" for name in ("clip_low", "clip_high")]
    wide = number(run, keys[0]) >= t.WIDE_LOW or number(run, keys[1]) >= t.WIDE_HIGH
    if run.option("policy_loss.name", "ppo_clip") not in PPO_CLIPS or not clipped or not ratio:
        return
    if max(clipped) <= t.CLIPS_NOTHING and (wide or max(ratio) >= t.FREE_RATIO):
        settings = ", ".join(f"{key}={shown(run, key)}" for key in keys if run.option(key) is not None)
        yield finding(
            "clip-inert",
            Severity.WARNING,
            "the clip never acts",
            f"at most {percent(max(clipped))} of the tokens of a step are clipped, the 99th percentile of the ratio "
            f"reaches {max(ratio):.3g}" + (f"; {settings}" if settings else ""),
            "policy_loss.params.clip_low and clip_high (0.2 is usual, 0.28 for clip_high in DAPO)",
        )


def _largest(run: StoredRun, name: str) -> float:
    return max((abs(value) for value in run.values(name) if math.isfinite(value)), default=0.0)
