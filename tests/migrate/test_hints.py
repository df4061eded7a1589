"""The tables of other trainers' keys, with all packages: what they name exists, and it is what a hint proposes."""

from __future__ import annotations

import pytest

from ramet.api import compose
from ramet.config.compose import layers
from ramet.config.foreign import TABLES, table
from ramet.config.keys import ENTRIES, FIELDS
from ramet.config.sections import GROUPS
from ramet.config.settings import leaf_keys
from ramet.errors import ConfigErrors

MODEL = "model.path=m"
CHOICES = (["algorithm=ppo", "engine=vllm"], ["algorithm=aepo_release"], ["advantage=grpo"])
RULES = {"same", "list", "none", "code"}


def test_every_key_of_ours_in_the_tables_exists() -> None:
    with_options = (leaf_keys(layers([MODEL, *chosen], job="train").tree) for chosen in CHOICES)
    here = {*FIELDS, *ENTRIES, *GROUPS}.union(*with_options)
    named = {(row.name, key) for trainer in TABLES for row in table(trainer).values() for key in row.ours}
    assert sorted(pair for pair in named if pair[1] not in here) == []


@pytest.mark.parametrize("trainer", TABLES)
def test_a_row_has_a_rule_and_one_without_counterpart_a_reason(trainer: str) -> None:
    rows = table(trainer).values()
    assert [row.name for row in rows if row.rule not in RULES and "=" not in row.rule] == []
    assert [row.name for row in rows if row.rule == "none" and not row.why] == []
    assert [row.name for row in rows if row.rule not in ("none", "code") and not row.ours] == []


@pytest.mark.parametrize(
    ("choice", "key", "instead"),
    [
        *(
            ("algorithm=arpo_release", name, f"branch_policy.params.{name}")
            for name in ("beam_size", "branch_probability", "entropy_weight")
        ),
        ("tools=[search]", "multi_turn.format", "rollout_step"),  # not tools.search.params.format
    ],
)
def test_a_hint_is_no_option_that_is_only_called_alike(choice: str, key: str, instead: str) -> None:
    theirs = f"actor_rollout_ref.rollout.{key}"
    with pytest.raises(ConfigErrors) as raised:
        compose([MODEL, choice, f"{theirs}=1"])
    [found] = [problem for problem in map(str, raised.value.problems) if problem.startswith(theirs)]
    assert f"Did you mean {instead!r}?" in found
