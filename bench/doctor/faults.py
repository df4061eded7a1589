"""The planted faults: for each the keys of the run, what it is started from, and the finding that names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A run. `expects`: names of findings of which one must come first or second; empty: the run is healthy.

    `keys` are those of `ramet train` after `experiment=RECIPE`; `{data}` in them is the folder of its data.
    """

    name: str
    expects: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    model: str = (
        "taught"  # taught: by SFT; init: random; learned: by the quickstart's RL; dropout; direct: SFT without calls
    )
    data: str = "rl"
    job: str = "train"
    recipe: str = "quickstart_search"  # or quickstart, whose tool is Python
    engine_noise: float = 0.0  # standard deviation of what is added to the engine's logits, and not to the trainer's


def tool(**params: object) -> tuple[str, ...]:
    """Keys that put the faulty search in the place of the quickstart's, whose tag the model knows."""
    given = ",".join(f"{name}:{value}" for name, value in {"corpus": "{data}/corpus.jsonl", **params}.items())
    return ("tools.search.use=faulty_search", f"tools.search.params={{{given}}}")


def reward(name: str, *keys: str) -> tuple[str, ...]:
    return (f"rewards=[{name}]", *keys)


UNSTOPPED = "rollout.max_masked_share=1.0"
FAULTS = (
    Planted(name="reward_compares_wrong_field", expects=("misjudged",), keys=reward("wrong_field")),
    Planted(name="reward_too_strict", expects=("misjudged",), keys=reward("strict")),
    Planted(name="golds_with_words_around", expects=("misjudged",), data="wordy_golds", keys=reward("right")),
    Planted(name="reward_constant", expects=("no-signal",), keys=reward("constant")),
    Planted(name="golds_of_other_rows", expects=("no-signal",), data="shuffled_golds"),
    Planted(name="tool_always_fails", expects=("tool-fails",), keys=tool(fails=1.0)),
    Planted(name="tool_fails_for_half", expects=("tool-fails",), keys=tool(fails=0.5)),
    Planted(name="tool_down_for_half", expects=("masked",), keys=(*tool(fails=0.5, masks="true"), UNSTOPPED)),
    Planted(name="tool_down_stops_the_run", expects=("masked",), keys=tool(fails=0.5, masks="true")),
    Planted(name="tool_down_for_few", expects=("masked",), keys=(*tool(fails=0.08, masks="true"), UNSTOPPED)),
    Planted(
        name="judge_fails_for_half",
        expects=("masked",),
        keys=(*reward("fails_often", "rewards.fails_often.max_unjudged=1.0"), UNSTOPPED),
    ),
    Planted(
        name="judge_fails_for_few",
        expects=("masked",),
        keys=(*reward("fails_sometimes", "rewards.fails_sometimes.max_unjudged=1.0"), UNSTOPPED),
    ),
    Planted(name="deadline_too_short", expects=("masked",), keys=("rollout.deadline_s=0.3", UNSTOPPED)),
    Planted(name="response_much_too_short", expects=("cut",), keys=("rollout.max_response_tokens=24",)),
    Planted(name="response_too_short", expects=("cut",), keys=("rollout.max_response_tokens=48",)),
    Planted(name="one_turn", expects=("cut",), keys=("rollout.max_turns=1",)),
    Planted(name="no_calls_allowed", expects=("cut", "tool-unused"), keys=("rollout.max_tool_calls=0",)),
    Planted(name="one_call_allowed", expects=("cut",), keys=("rollout.max_tool_calls=1",)),
    Planted(name="result_cut_to_nothing", expects=("tool-cut",), keys=("tools.search.max_result_tokens=8",)),
    Planted(name="result_cut_short", expects=("tool-cut",), keys=("tools.search.max_result_tokens=14",)),
    Planted(name="untaught_model", expects=("no-format",), model="init"),
    Planted(
        name="tool_renamed",
        expects=("other-form",),
        keys=("tools=[]", "tools.lookup.use=faulty_search", "tools.lookup.params={corpus:{data}/corpus.jsonl}"),
    ),
    Planted(
        name="step_of_another_format",
        expects=("other-form",),
        keys=("rollout_step=hermes", "rollout_step.tools_in_template=false"),
    ),
    Planted(name="answer_tag_renamed", expects=("other-form",), keys=("rollout_step.params.answer=final",)),
    Planted(name="never_calls", expects=("tool-unused",), model="direct"),
    Planted(name="temperature_near_zero", expects=("sure",), keys=("rollout.temperature=0.01",)),
    Planted(name="temperature_low", expects=("sure",), keys=("rollout.temperature=0.1",)),
    Planted(name="lr_100_times", expects=("update-large",), keys=("policy.lr=3e-2",)),
    Planted(name="lr_30_times", expects=("update-large",), keys=("policy.lr=1e-2",)),
    Planted(name="lr_10_times", expects=("update-large",), keys=("policy.lr=3e-3",)),
    Planted(name="lr_nothing", expects=("update-small",), keys=("policy.lr=1e-12",)),
    Planted(name="lr_of_a_large_model", expects=("update-small",), keys=("policy.lr=1e-8",)),
    Planted(name="kl_coef_100", expects=("kl-coef",), keys=("train.kl_coef=100",)),
    Planted(name="kl_coef_1", expects=("kl-coef",), keys=("train.kl_coef=1.0",)),
    Planted(
        name="entropy_bonus",
        expects=("entropy-grows", "update-large"),
        keys=("train.entropy_coef=0.5", "train.steps=12"),
    ),
    Planted(
        name="clip_never_acts",
        expects=("clip-inert", "update-large"),
        keys=("policy.lr=3e-3", "policy_loss.params.clip_low=0.99", "policy_loss.params.clip_high=1000"),
    ),
    Planted(
        name="clip_too_wide",
        expects=("clip-inert",),
        keys=("policy_loss.params.clip_low=0.99", "policy_loss.params.clip_high=1000"),
    ),
    Planted(name="engine_of_low_precision", expects=("engine-gap",), engine_noise=2.0),
    Planted(name="engine_of_lower_precision", expects=("engine-gap",), engine_noise=1.0),
    Planted(name="no_forks_threshold", expects=("no-forks",), keys=("branch_policy.params.tau=5",)),
    Planted(name="no_forks_budget", expects=("no-forks",), keys=("branch_policy.params.initial_rollouts=8",)),
    Planted(name="one_source_without_golds", expects=("one-source",), data="two_sources"),
    Planted(
        name="paid_for_few_calls",
        expects=("hacked",),
        model="learned",
        keys=(
            *reward("qa_em,few_calls", "rewards.qa_em.weight=0.1"),
            "data.valid=[{data}/test.jsonl]",
            "data.limits.valid=24",
            "train.eval_every=2",
            "train.eval_first=true",
        ),
    ),
    Planted(
        name="paid_for_few_calls_mildly",
        expects=("hacked",),
        model="learned",
        keys=(*reward("qa_em,few_calls", "rewards.qa_em.weight=0.3"), "train.steps=12"),
    ),
    Planted(name="tool_slow_for_some", expects=("slow-tools", "stragglers"), keys=tool(slow=0.3, slow_s=1.5)),
    Planted(name="warm_policy", expects=("sure",), keys=("rollout.temperature=0.3",)),
    Planted(
        name="entropy_penalty",
        expects=("collapsed", "update-large", "reward-falls"),
        keys=("train.entropy_coef=-200", "train.steps=12"),
    ),
    Planted(name="tool_returns_error_texts", expects=("tool-fails",), keys=tool(fails=1.0, returns="true")),
    Planted(
        name="format_never_right",
        expects=("dead-part",),
        keys=(*reward("qa_em,format"), "rewards.format.params.required=[think,answer]"),
    ),
    Planted(name="kl_runs_away", expects=("update-large", "kl-grows"), keys=("train.kl_coef=1e-6", "policy.lr=1e-2")),
    Planted(name="temperature_high", expects=("no-format",), keys=("rollout.temperature=4",)),
    Planted(name="slow_tool", expects=("slow-tools",), keys=tool(slow=1.0, slow_s=1.0)),
    Planted(
        name="tool_one_at_a_time",
        expects=("slow-tools",),
        keys=(*tool(slow=1.0, slow_s=0.03), "tools.search.concurrency=1"),
    ),
    Planted(name="slow_judge", expects=("slow-judge",), keys=reward("very_slow_judge")),
    Planted(name="slower_judge", expects=("slow-judge",), keys=reward("slow_judge")),
    Planted(name="stragglers", expects=("stragglers", "slow-tools"), keys=tool(slow=0.02, slow_s=5.0)),
    Planted(
        name="cut_results_and_slow_judge",
        expects=("tool-cut", "slow-judge"),
        keys=(*reward("very_slow_judge"), "tools.search.max_result_tokens=8"),
    ),
    Planted(
        name="python_without_time",
        expects=("tool-fails", "masked"),
        recipe="quickstart",
        keys=("tools.python.timeout_s=0.02", UNSTOPPED),
    ),
    Planted(name="reward_wants_hashes", expects=("misjudged",), recipe="quickstart", keys=("rewards=[gsm8k]",)),
    Planted(
        name="python_result_cut",
        expects=("tool-cut",),
        recipe="quickstart",
        keys=("tools.python.max_result_tokens=3",),
    ),
    Planted(name="sft_lr_too_small", expects=("loss-flat",), job="sft", model="init", keys=("sft.lr=1e-9",)),
    Planted(
        name="sft_lr_too_large",
        expects=("loss-flat", "not-finite", "ended"),
        job="sft",
        model="init",
        keys=("sft.lr=30",),
    ),
)
HEALTHY = (
    Planted(name="healthy_seed_2", keys=("run.seed=2",)),
    Planted(name="healthy_grpo", keys=("branch_policy=none", "run.seed=3")),
    Planted(name="healthy_learned", model="learned", keys=("run.seed=4",)),
    Planted(name="healthy_temperature", keys=("rollout.temperature=0.8", "run.seed=5")),
    Planted(name="healthy_kl", keys=("train.kl_coef=0.01", "run.seed=6")),
    Planted(name="healthy_staleness", keys=("train.staleness=1", "run.seed=7")),
    Planted(
        name="healthy_validated",
        keys=(
            "run.seed=8",
            "data.valid=[{data}/test.jsonl]",
            "data.limits.valid=24",
            "train.eval_every=2",
            "train.eval_first=true",
        ),
    ),
    Planted(name="healthy_long", keys=("run.seed=9", "train.steps=20")),
    Planted(name="healthy_sft", job="sft", model="init"),
    Planted(name="healthy_python", recipe="quickstart", keys=("run.seed=2",)),
    Planted(name="healthy_python_grpo", recipe="quickstart", keys=("run.seed=3", "branch_policy=none")),
)
