"""Choices of keys of the schema. They are written by value (`train.loss_aggregation=token-mean`)."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any

from omegaconf.nodes import EnumNode


class SystemPrompt(StrEnum):
    AUTO = "auto"  # the step's, unless the task brings its own
    ALWAYS = "always"  # the step's, instead of the task's
    APPEND = "append"  # the task's own, then the step's
    NEVER = "never"


class OnBadRow(StrEnum):
    ERROR = "error"
    SKIP = "skip"  # and count


class Malformed(StrEnum):
    """The treatment of a written trace that does not keep the format."""

    ERROR = "error"
    SKIP = "skip"  # and count
    KEEP = "keep"  # trained on as it is, and counted


class ChatMarkup(StrEnum):
    """The treatment of special tokens of the chat template (`<|im_end|>`) that are in a prompt's own text."""

    KEEP = "keep"  # they are such tokens, and counted
    NEUTRALISE = "neutralise"  # they are spelled out, so that no prompt speaks for another role


class Order(StrEnum):
    """The order in which a pass over the training data takes its tasks."""

    SHUFFLED = "shuffled"  # by the seed
    CURRICULUM = "curriculum"  # from easy to hard; equally hard ones are shuffled
    FILE = "file"  # as they are written


class BudgetKind(StrEnum):
    """How a step's rollouts are spread over tasks."""

    AUTO = "auto"  # as the branch policy says, if it has an `allocate`; otherwise evenly
    UNIFORM = "uniform"  # the same for each task
    CONTRAST = "contrast"  # where different outcomes are expected, per sampled token
    CONTRAST_PER_SECOND = "contrast-per-second"
    RANDOM = "random"  # by chance: the control


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Attention(StrEnum):
    AUTO = "auto"  # on CUDA flash-attention where installed, else varlen; otherwise sdpa
    SDPA = "sdpa"
    EAGER = "eager"
    FLASH = "flash_attention_2"
    VARLEN = "varlen"  # torch's own kernel for packed sequences; CUDA and bfloat16 only
    FLEX = "flex"  # torch's FlexAttention, compiled; CUDA only


class SharePrefixes(StrEnum):
    """Whether what the rollouts of a group have in common is computed once in the policy's passes."""

    AUTO = "auto"  # where it saves tokens, on devices and for models where it was measured
    ALWAYS = "always"
    NEVER = "never"


class MinibatchOf(StrEnum):
    """The units that are drawn into the mini-batches of a step."""

    AUTO = "auto"  # groups where prefixes are computed once, else rollouts
    GROUPS = "groups"
    ROLLOUTS = "rollouts"


class OldLogprobs(StrEnum):
    TRAINER = "trainer"  # recomputed once per step
    ENGINE = "engine"  # pi_old := mu, one forward pass less


class LossAggregation(StrEnum):
    TOKEN_MEAN = "token-mean"
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"  # over rollout.max_response_tokens (Dr. GRPO)
    TOKEN_SUM_NORM = "token-sum-norm"  # sum over only rollout.max_response_tokens: grows with the batch


class KlEstimator(StrEnum):
    K1 = "k1"
    ABS = "abs"
    K2 = "k2"
    K3 = "k3"
    K1_PLUS = "k1+"  # straight-through: the value of k1, the gradient of k2
    ABS_PLUS = "abs+"
    K3_PLUS = "k3+"
    K1_REWARD = "k1-reward"  # taken off the rewards of sampled tokens, before the advantages; the others: in the loss


class Combine(StrEnum):
    """The effect of a reward on rewards of other names."""

    ADD = "add"  # weight x score is added to the others
    MULTIPLY = "multiply"  # the sum of those that add is multiplied by weight x score


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Offload(StrEnum):
    """The parts that wait in host memory while they are not computed with. GPUs only."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"  # parameters too


class Strategy(StrEnum):
    """How `ramet sft` spreads over its workers."""

    NONE = "none"  # one worker
    ZERO0 = "zero0"  # DeepSpeed, nothing sharded
    ZERO2 = "zero2"  # DeepSpeed, optimiser and gradients sharded
    ZERO3 = "zero3"  # DeepSpeed, parameters too
    ZERO3_OFFLOAD = "zero3_offload"  # parameters and optimiser wait in host memory; GPUs only
    FSDP = "fsdp"


# OmegaConf 2.3 takes the names of an enum's members only (`TOKEN_MEAN`), in YAML and on the command line, so its
# conversion is widened here. It can go once OmegaConf accepts values of string enums itself.
_by_name = EnumNode.validate_and_convert_to_enum


def _by_value_or_name(enum_type: type[Enum], value: Any) -> Enum:
    if isinstance(value, str) and value in [member.value for member in enum_type]:
        return enum_type(value)
    return _by_name(enum_type=enum_type, value=value)


def accept_enum_values() -> None:
    """Let OmegaConf convert by value too. Safe to call again."""
    EnumNode.validate_and_convert_to_enum = staticmethod(_by_value_or_name)  # type: ignore[method-assign]
