from __future__ import annotations

import pytest

from ramet.config.schema import (
    ClusterConfig,
    ComponentConfig,
    Config,
    ModelConfig,
    OldLogprobs,
    RolloutConfig,
    ToolConfig,
    TrainConfig,
)
from ramet.train.dry_run import _results, engine_in_words, staleness_in_words


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (TrainConfig(), ""),
        (
            TrainConfig(staleness=1, tis_cap=5.0),
            "groups of the next step run during the update, with weights at most 1 update old; their importance "
            "weights are cut at train.tis_cap=5.0",
        ),
        (
            TrainConfig(staleness=2),
            "groups of the next 2 steps run during the update, with weights at most 2 updates old; their importance "
            "weights are cut at train.tis_cap=2.0",
        ),
        (
            TrainConfig(staleness=1, tis_cap=None, old_logprobs=OldLogprobs.ENGINE),
            "groups of the next step run during the update, with weights at most 1 update old; their importance "
            "weights are the loss's ratios",
        ),
    ],
)
def test_the_plan_says_how_stale_groups_may_be_and_what_cuts_their_weights(train: TrainConfig, said: str) -> None:
    roomy = RolloutConfig(max_concurrent=4096)
    assert staleness_in_words(Config(model=ModelConfig(path="m"), train=train, rollout=roomy)) == said


@pytest.mark.parametrize(
    ("cluster", "most", "said"),
    [
        (ClusterConfig(), 64, "64 rollouts run at once (rollout.max_concurrent=64) and a step has 64: "),
        (
            ClusterConfig(name="ray", rollout_workers=3),
            16,
            "48 rollouts run at once (rollout.max_concurrent=16 in each of 3 workers) and a step has 64: ",
        ),
        (ClusterConfig(name="ray", rollout_workers=3), 32, ""),
    ],
)
def test_the_plan_says_that_there_is_no_room_to_play_ahead(cluster: ClusterConfig, most: int, said: str) -> None:
    train, rollout = TrainConfig(staleness=2, tasks_per_step=8), RolloutConfig(max_concurrent=most, group_size=8)
    config = Config(model=ModelConfig(path="m"), train=train, rollout=rollout, cluster=cluster)
    _, _, added = staleness_in_words(config).partition("\n")
    ahead = "groups begin ahead only as that step's end; more places would begin them earlier"
    assert added == (f"{said}{ahead}" if said else "")


@pytest.mark.parametrize(
    ("engine", "cuda", "said"),
    [
        ("torch", False, "torch; measured on two CPU cores"),
        ("vllm", False, "vllm; measured on two CPU cores"),
        ("vllm", True, "vllm"),
        ("mine", False, "mine"),
    ],
)
def test_the_plan_says_how_the_engines_compare_on_a_cpu(engine: str, cuda: bool, said: str) -> None:
    words = engine_in_words(Config(model=ModelConfig(path="m"), engine=ComponentConfig(name=engine)), cuda=cuda)
    assert words[: len(said)] == said and ("tokens/s" in words) == ("measured" in said)


@pytest.mark.parametrize(
    ("response", "cap", "calls", "said"),
    [
        (4096, 1024, 3, ""),
        (126_976, 10_240, 8, ""),
        (
            126_976,
            1024,
            6,
            "\nresults are cut (tools.python.max_result_tokens=1024): the 6 calls of a rollout "
            "(rollout.max_tool_calls, rollout.max_turns) bring at most 6,144 of the 126,976 tokens of a response; "
            "raise what a longer task needs",
        ),
        (126_976, 1024, 0, ""),
    ],
)
def test_the_plan_says_where_results_of_tools_leave_most_of_a_response_unused(
    response: int, cap: int, calls: int, said: str
) -> None:
    rollout = RolloutConfig(max_response_tokens=response, max_tool_calls=calls)
    tools = {"python": ToolConfig(max_result_tokens=cap)}
    assert _results(Config(model=ModelConfig(path="m"), rollout=rollout, tools=tools)) == said
    assert _results(Config(model=ModelConfig(path="m"), rollout=rollout)) == ""
