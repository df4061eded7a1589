"""Keys of earlier versions: what says the same now, or the value that is in force since.

The error for one that is set says what to write. A run that recorded one continues where its value means what is in
force: `carried` gives recorded keys today's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ramet.types.option import Resume

LAST = "0.1.0"  # the last version that had them


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneKey:
    """`default` was the value without the key, and means today what the absence of `now` means."""

    default: Any
    now: str | None = None  # the key that says it today; None: `default` is in force
    value: Callable[[Any], Any] = lambda value: value  # the value of `now` for one of the former key
    resume: Resume = Resume.NUMBERS  # what another value did to a resumed run

    def problem(self, key: str, value: Any = ...) -> str:
        """Return the error for a configuration that sets the key, to `value` where that is known."""
        written = "" if value is ... else f"={shown(value)}"
        since = f"{key}{written}: not a key any more (the last version with it was {LAST})"
        if self.now is None or value == self.default:
            return f"{since}; {shown(self.default)} is in force, so leave it out"
        return f"{since}; write {self.now}={'…' if value is ... else shown(self.value(value))}"

    def change(self, key: str, value: Any) -> str:
        """Return what a resumed run says of a recorded value that nothing stands for today."""
        said = f"{key} was {shown(value)}, and {shown(self.default)} is in force"
        return f"{said}: the last version with the key was {LAST}, which can end this run"


def shown(value: Any) -> str:
    """Return a value as one writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{','.join(map(shown, value))}]" if isinstance(value, list) else str(value)


GONE: Mapping[str, GoneKey] = {
    "rollout.watchdog_s": GoneKey(default=60.0, resume=Resume.SAFE),
    "train.stored_prefix_tokens": GoneKey(default=4_000_000),
    "train.kl_horizon": GoneKey(default=10_000),
    "train.max_bad_steps": GoneKey(default=3),
    "policy.beta1": GoneKey(default=0.9),
    "data.shuffle": GoneKey(default=True, now="data.order", value=lambda value: "file", resume=Resume.ORDER),
    "data.curriculum": GoneKey(default=False, now="data.order", value=lambda value: "curriculum", resume=Resume.ORDER),
    "data.min_difficulty": GoneKey(default=None, now="data.difficulty.min"),
    "data.max_difficulty": GoneKey(default=None, now="data.difficulty.max"),
    "rollout.max_infra_rate": GoneKey(default=0.2, now="rollout.max_masked_share", resume=Resume.FAILURES),
    "evaluate.max_masked_share": GoneKey(default=0.05, now="rollout.max_masked_share", resume=Resume.SAFE),
    "train.print_samples": GoneKey(
        default=0, now="trackers", value=lambda value: ["console", "jsonl", "samples"], resume=Resume.SAFE
    ),
    "train.kl_in": GoneKey(default="loss", now="train.kl_estimator", value=lambda value: "k1-reward"),
    "train.tis_level": GoneKey(default="token", now="train.off_policy.tis_level"),
    "train.token_band": GoneKey(default=None, now="train.off_policy.token_band"),
    "train.sequence_band": GoneKey(default=None, now="train.off_policy.sequence_band"),
    "train.negative_gap_max": GoneKey(default=None, now="train.off_policy.negative_gap_max"),
    "sft.max_steps": GoneKey(default=None, now="sft.trainer.max_steps"),
    "sft.beta2": GoneKey(default=0.999, now="sft.trainer.adam_beta2"),
    "sft.schedule": GoneKey(
        default="cosine", now="sft.trainer.lr_scheduler_type",
        value=lambda value: "constant_with_warmup" if value == "constant" else value,
    ),
    "sft.warmup_ratio": GoneKey(default=0.1, now="sft.trainer.warmup_ratio"),
    "sft.weight_decay": GoneKey(default=0.0, now="sft.trainer.weight_decay"),
    "sft.save_every": GoneKey(default=500, now="sft.trainer.save_steps", resume=Resume.SAFE),
    "sft.log_every": GoneKey(default=10, now="sft.trainer.logging_steps", resume=Resume.SAFE),
    "data.limit": GoneKey(default=None, now="data.limits.train"),
    "data.valid_limit": GoneKey(default=None, now="data.limits.valid", resume=Resume.VALIDATION),
    "evaluate.pass_at": GoneKey(default=[], resume=Resume.SAFE),
    "evaluate.out": GoneKey(default=None, now="run.out", resume=Resume.SAFE),
    "rollout_step.params.instruction": GoneKey(default="", now="rollout_step.instruction"),
    "sft.out": GoneKey(default=None, now="run.out", resume=Resume.SAFE),
    "rollout.top_p": GoneKey(default=1.0),
    "rollout.top_k": GoneKey(default=0),
    **{f"train.eval_{name}": GoneKey(default=None, now=f"train.eval_sampling.{name}", resume=Resume.VALIDATION)
       for name in ("temperature", "top_p", "top_k")},
    **{f"evaluate.{name}": GoneKey(default=None, now=f"evaluate.sampling.{name}", resume=Resume.VALIDATION)
       for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
}  # fmt: skip
# New keys, keys with a new default, and entries of mappings that were keys: values that say what their absence says.
NOTHING_SAID: Mapping[str, tuple[Any, ...]] = {
    **{f"data.columns.{name}": (name,) for name in ("prompt", "data_source", "tools")},
    **dict.fromkeys(("data.columns.id", "data.columns.answer", "data.columns.difficulty"), (None,)),
    **dict.fromkeys(("wandb.project", "wandb.entity", "wandb.name", "wandb.group"), (None,)),
    "wandb.tags": ([],),
    "wandb.mode": ("auto",),
    "data.order": ("shuffled",),
    "run.out": (None,),
    "rollout.max_masked_share": (None,),
    "train.kl_estimator": (None, "k3"),
    "rollout_step.instruction": ("",),
    "sft.lora_rank": (0,),
    "sft.max_samples": (None,),
    "sft.truncate": (False,),
    "sft.valid": ([],),
    "sft.valid_share": (0.0,),
}


def carried(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Give recorded keys, by dotted name, today's names. A value that is in force without its key needs none."""
    renamed = {
        key: value for key, value in recorded.items() if key not in GONE and value not in NOTHING_SAID.get(key, ())
    }
    for key, value in recorded.items():
        gone = GONE.get(key)
        if gone is not None and value != gone.default:
            now = gone.now if gone.now not in renamed or gone.now in recorded else None  # two keys said what one says
            renamed[now or key] = gone.value(value) if now else value
    return renamed
