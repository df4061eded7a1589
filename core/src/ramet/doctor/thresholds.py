"""Thresholds of `ramet doctor RUN`, each with its reason. docs/doctor.md lists the same values.

`_LOOK` gives a warning, `_WRONG` a problem. Shares are of rollouts unless the comment says otherwise. A value is
the mean over all of the run unless the comment names another one.
"""

from __future__ import annotations

# What is needed before anything is concluded.
FEWEST_ROLLOUTS = 16  # two groups of eight: a share of fewer is chance
FEWEST_GROUPS = 8  # 8 groups without signal are chance once in 10,000 if a third of all groups has none
RISE_SE = 2.0  # standard errors that two thirds of a curve differ by when it rises or falls
EXAMPLES = 3  # rollouts that a finding names

# Masked rollouts. A step stops the run at 0.2 by default (rollout.max_masked_share); below it the data is biased
# towards what a service can answer.
MASKED_LOOK, MASKED_WRONG = 0.03, 0.15

# Rollouts whose agent crashed. Some do while a policy learns to call tools.
CRASHED_LOOK, CRASHED_WRONG = 0.2, 0.5

# Rollouts that hold a call or an answer in a form that the rollout step does not read.
FORM_LOOK, FORM_WRONG = 0.1, 0.3

# Rollouts that end by themselves without an answer, or that hold no mark of the format at all.
NO_ANSWER_LOOK, NO_ANSWER_WRONG = 0.4, 0.8
NO_MARK_WRONG = 0.8  # without a call or an answer, and …
NOISE_ENTROPY = 3.0  # … without a tag, or at this entropy in the first step: a language model has under 1.5 nats

# Rollouts cut by a limit. Some are normal; a run in which half are cut learns to be short, not to be right.
CUT_LOOK, CUT_WRONG = 0.2, 0.5

# Tools.
TOOL_UNUSED = 0.01  # a tool that one rollout in a hundred calls is never learned
TOOL_ERRORS_LOOK, TOOL_ERRORS_WRONG = 0.4, 0.8  # of calls: models that learn to call make up to a third of mistakes
TOOL_SAME_ERROR, TOOL_SAME_LOOK = 0.8, 0.2  # one text is this share of the errors: a cause of its own, seen earlier
SAME_RESULT, SAME_RESULT_ARGUMENTS = 0.5, 5  # of calls get one text, whatever they ask: it counts as an error
TOOL_CUT_LOOK, TOOL_CUT_WRONG = 0.3, 0.8  # of calls
TOOL_CUT_SHORT = 256  # tokens that are kept: a problem below, as published runs keep 512 to 5000
FEWEST_CALLS = 8

# Answers that equal the gold and earn nothing. A judge with other rules (units, format) misses a few.
MISJUDGED_LOOK, MISJUDGED_WRONG = 0.1, 0.4  # of the rollouts whose answer equals the gold
MISJUDGED_RIGHT = 0.05  # and of all rollouts, so that chance matches of short golds do not count

# Groups whose first rollouts (forks left out) are the same text. With two of 8 rollouts different there is a signal.
COPIES_LOOK, COPIES_WRONG = 0.6, 0.8  # of groups

# Groups whose rewards are all equal. They train nothing; DAPO's filter meets 0.3 to 0.6 in normal runs.
NO_SIGNAL_LOOK, NO_SIGNAL_WRONG = 0.7, 0.9

# The update. Nats are per token.
STEP_KL_LOOK, STEP_KL_WRONG = 0.03, 0.3  # policy to old policy; PPO's usual target is 0.01 to 0.05. Largest of a step
CLIPPED_LOOK, CLIPPED_WRONG = 0.3, 0.6  # of tokens, largest of a step; 0.001 to 0.2 are usual
REFERENCE_KL_LOOK, REFERENCE_KL_WRONG = 0.5, 2.0  # policy to reference, last step; long runs without KL reach 0.5
STILL_RATIO = 1e-3  # the largest ratio differs from 1 by less in every step: float32 rounds at about 1e-6
WARMUP_TIMES = 2  # times the run's steps: the rate stays below half of policy.lr
SMALLEST_LR = 1e-9  # largest of all steps; 1e-7 is the least that is published for RL, LoRA takes 1e-5
KL_COEF_LOOK, KL_COEF_WRONG = 0.2, 1.0  # published: 0.001 to 0.1. At 1 the KL outweighs an advantage of 1
SKIPPED_LOOK, SKIPPED_WRONG = 0.05, 0.5  # of optimiser steps
GAP_LOOK, GAP_WRONG = 0.05, 0.2  # nats, engine to trainer; bfloat16 gives 0.005 to 0.02
GAP_OF_ENTROPY, GAP_LEAST = 0.3, 0.02  # of the entropy, from so many nats on: a sure policy has small gaps
FREE_RATIO = 2.0  # the 99th percentile or maximum of the ratio at which a clip that never acts is inert
WIDE_LOW, WIDE_HIGH = 0.8, 2.0  # of `ppo_clip`: ratios of 0.2 to 3 pass; published are up to 0.4
CLIPS_NOTHING = 0.0005  # of tokens, largest of a step

# Explosion and collapse: the last third of the steps against the first step.
ENTROPY_TIMES, ENTROPY_MORE_LOOK, ENTROPY_MORE_WRONG = 2.0, 0.3, 1.0  # nats more, and so many times as much
ENTROPY_COLLAPSE = 0.1  # of the first step's entropy is left
LENGTH_TIMES, LENGTH_MORE = 2.0, 16  # sampled tokens

REWARD_FALL, REWARD_FALL_SHARE = 0.1, 0.25  # from the best third of the steps to the last; share of the best
REWARD_LOST = 0.5  # of the best third's reward is left: a problem

# Data sources: each with at least this share of the rollouts is compared.
SOURCE_SHARE = 0.1
SOURCE_NONE, SOURCE_SOME = 0.02, 0.1  # one source's reward, and the best one's
SOURCE_SIGNAL, SOURCE_OTHER = 0.05, 0.3  # groups with a signal of one source, and of the one with most

# Forks of a branch policy that can fork.
FORKS_FEW = 0.25  # forks per group: one in four groups compares a fork with its parent

# Training against validation.
VALID_FALL, VALID_SE = 0.05, 2.0  # reward, from the best validation before to the last, and so many standard errors
VALID_TASKS = 32  # for the standard error, where the manifest does not say how many there were
PART_CHANGE = 0.05  # by which one part of the reward falls, before its weight
PART_SHARE = 0.25  # of the complete reward's rise: a smaller fall of a part is outweighed

# Time. A step under STEP_S is not worth a change.
STEP_S = 1.0
TOOL_TIME, JUDGE_TIME = 0.5, 0.4  # of the rollouts' seconds in tools; of the step's seconds in rewards
STRAGGLER_TIMES, STRAGGLER_SHARE = 4.0, 0.6  # the longest against the median, and its share of the step

# SFT.
LOSS_FALL = 0.02  # share of the first loss by which it has to fall
LOSS_LOW = 0.05  # nats per token, or less: nothing is left to learn, tokens have 95 % on average
FEWEST_LINES = 4  # of the loss
VALID_LOSS_RISE = 0.1  # share, from its lowest value to its last
