"""Checks of a run's components before anything starts: that they can be built, and that the run gives what they need.

An algorithm always gets the inputs that it needs, or the run is refused. Reference and critic are built on demand, and
so are entropies of the trainer computed; the engine's are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from ramet.components.build import Components, needs_rewards
from ramet.components.engines import check_engine, engine_capabilities, loads_weights
from ramet.components.prompts import check_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.schema import BudgetKind, Config, LossAggregation, OldLogprobs
from ramet.engines.protocol import Capability
from ramet.errors import PluginError, RametError, collected
from ramet.models.check import check_model
from ramet.models.torch_setup import check_torch
from ramet.plugins import origin
from ramet.plugins.component_checks import is_agent
from ramet.rollout.agents.group import agent_settings
from ramet.rollout.branching.budgets import part_size, step_budget
from ramet.rollout.branching.decisions import ask
from ramet.rollout.method import rollout_method
from ramet.rollout.stateful import StatefulComponent, fork_problems, step_component
from ramet.types import BranchPolicy, GroupView, Need, PolicyLoss, Start, Task, user_prompt
from ramet.types.algorithm import MIN_GROUP, SCOPES
from ramet.types.branch import policy_needs

logger = logging.getLogger(__name__)
SCORED = {Need.RESCORED, Need.PROBED}  # what the teacher computes, or without one the policy
GIVEN = {
    "advantage": {Need.ENTROPY, Need.OLD_LOGPROBS, Need.REFERENCE, Need.VALUES, Need.GREEDY_ROLLOUT} | SCORED,
    "policy_loss": {Need.ENTROPY, Need.OLD_LOGPROBS, Need.REFERENCE},
    "branch_policy": {Need.ENTROPY, Need.REWARDS, Need.EARLIER_TURNS, Need.LATE_EVENTS, Need.PREFIXES},
}


def check_components(components: Components, config: Config, *, training: bool) -> list[str]:
    """Build everything that is light, so that a broken plugin or option shows before anything starts."""
    builders: list[Callable[[], Any]] = [lambda: components.step]
    if training:
        builders += [
            lambda: _start_a_group(components.branch_policy, config.rollout.group_size),
            lambda: components.advantage,
            lambda: components.loss,
            lambda: components.scorer,
        ]
    problems = []
    for build in builders:
        try:
            build()
        except RametError as error:
            problems.append(str(error))
    problems += [] if problems else _agent_problems(components, config, training=training)
    if training and not problems:
        problems += _group_size(components, config)
    if training and not problems:
        try:
            problems += _budget(components, config)
        except RametError as error:
            problems.append(
                f"train.budget={config.train.budget}, whose groups have half of rollout.group_size: {error}"
            )
    if training and not problems and config.train.resample_rounds and Need.VALUES in components.advantage.needs:
        problems.append(
            f"train.resample_rounds={config.train.resample_rounds}: replaces groups of equal rewards, from which "
            f"advantage={config.advantage.name} learns too; set 0"
        )
    return problems


def _agent_problems(components: Components, config: Config, *, training: bool) -> Iterator[str]:
    """Yield what an agent as rollout step cannot be combined with."""
    if not is_agent(components.step):
        return
    name = f"rollout_step={config.rollout_step.name}"
    if config.tools:
        yield (
            f"tools=[{','.join(config.tools)}]: {name} is an agent, which calls its own tools; set tools=[], and offer "
            "these to it with `ramet tool serve`"
        )
    settings = agent_settings(components.step)
    if settings.port and config.cluster.rollout_workers > 1:
        yield (
            f"rollout_step.params.port={settings.port}: the gateways of cluster.rollout_workers="
            f"{config.cluster.rollout_workers} would all listen there; set 0, and each takes a free port"
        )
    if settings.on_crash == "mask":
        logger.warning(
            "%s: with on_crash=mask a policy can avoid bad rewards by crashing its agent; watch step/agent_crashed",
            name,
        )
    if not training:  # which needs an engine whose weights it can update
        warn_of_remote_model(config)
    if training and not getattr(components.advantage, "reads_threads", False):
        yield (
            f"advantage={config.advantage.name}: {origin(components.advantage)} does not say that it reads rollouts "
            f"with several threads (`reads_threads = True`; see thread_ids), which {name} may have"
        )


def check_played(components: Components, config: Config, problems: list[str], *, with_engine: bool = True) -> ToolNames:
    """Check what rollouts without a training are made of. Adds to `problems`, and returns the names of the tools, which
    count only where there are no problems.
    """
    problems += [
        *check_model(config.model),
        *check_torch(config.run, config.model),
        *(check_engine(config) if with_engine else ()),
        *check_components(components, config, training=False),
    ]
    tools = ToolNames()
    with collected(problems):
        tools = tool_names(config)
        problems += [] if problems else check_prompts(components.step, config, tools)
    return tools


def warn_of_remote_model(config: Config) -> None:
    """Warn of what a gateway cannot record of a model on a server."""
    if not loads_weights(config):
        logger.warning(
            "engine=%s: no entropies are recorded, and log-probabilities only with engine.params.logprobs=true. Where "
            "a server gives no token ids (`vllm serve` gives them), the recorded ids are the tokenizer's for its text: "
            "they may be others than it sampled (engine/drifted_requests counts requests that show it), and no model "
            "should be trained on the record (docs/gateway.md#what-is-recorded)",
            config.engine.name,
        )


def _group_size(components: Components, config: Config) -> Iterator[str]:
    size, least = config.rollout.group_size, getattr(components.advantage, "min_group", MIN_GROUP)
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        raise PluginError(f"{origin(components.advantage)}: min_group is {least!r:.80}: give a number of at least 1")
    if (scope := getattr(components.advantage, "scope", "batch")) not in SCOPES:
        raise PluginError(f"{origin(components.advantage)}: scope is {scope!r:.80}: one of {', '.join(SCOPES)}")
    if size < least:
        yield (
            f"rollout.group_size={size}: must be at least {least}, since advantage={config.advantage.name} compares "
            "the rollouts of a task; advantage=gae, reinforce_pp and remax take 1"
        )
    elif size < MIN_GROUP and config.train.resample_rounds:
        yield (
            f"train.resample_rounds={config.train.resample_rounds}: replaces groups of equal rewards, as all are with "
            f"rollout.group_size={size}; set 0"
        )


def _budget(components: Components, config: Config) -> Iterator[str]:
    """Yield what a step budget cannot be combined with."""
    train, rollout, policy = config.train, config.rollout, components.branch_policy
    if step_budget(train.budget, policy) is None:
        if train.budget_tasks is not None:
            yield f"train.budget_tasks={train.budget_tasks}: read only with a step budget; set train.budget=contrast"
        return
    name, own = f"train.budget={train.budget}", train.budget is BudgetKind.AUTO
    if own:
        name += f" (branch_policy={config.branch_policy.name} has an `allocate`)"
    for key in ("staleness", "resample_rounds"):
        if value := getattr(train, key):
            yield f"{name}: needs train.{key}=0, got {value}; or set train.budget=uniform"
    if train.tasks_drawn < train.tasks_per_step:
        yield f"train.budget_tasks={train.budget_tasks}: at least train.tasks_per_step={train.tasks_per_step}"
    if train.budget is BudgetKind.CONTRAST_PER_SECOND and config.run.deterministic:
        yield f"{name}: reads clocks, so run.deterministic=true excludes it; set train.budget=contrast"
    if rollout_method(policy) is not None:
        yield f"{name}: branch_policy={config.branch_policy.name} has its own rollout method, which runs equal groups"
    part, least = part_size(rollout.group_size), max(MIN_GROUP, getattr(components.advantage, "min_group", MIN_GROUP))
    if not own and part < least:
        yield (
            f"{name}: grants groups of half of rollout.group_size={rollout.group_size}, and advantage="
            f"{config.advantage.name} compares at least {least} rollouts; raise it to {2 * least - 1} or more"
        )
    elif not own:
        _start_a_group(policy, part)


def _start_a_group(policy: BranchPolicy, budget: int) -> None:
    """A branch policy is pure, so it can be asked about a group that never runs."""
    task = Task(id="check", prompt=user_prompt("check"))
    view = GroupView(task=task, budget=budget, budget_left=budget, rollouts=(), vocab_size=1)
    ask(policy, Start(), view, Random(0))


def check_forks(components: Components, tools: Sequence[StatefulComponent]) -> list[str]:
    """Whether the branch policy can fork the states of these tools and of the environment."""
    return fork_problems([*step_component(components.step), *tools], components.branch_policy)


def check_needs(components: Components, config: Config) -> list[str]:
    """Problems of the chosen estimator, loss and branch policy with engine and configuration.

    Raises what building them raises.
    """
    loss, policy = components.loss, components.branch_policy
    needs = {
        "advantage": components.advantage.needs,
        "policy_loss": loss.needs,
        "branch_policy": policy_needs(policy),
    }
    for component, wanted in zip((components.advantage, loss, policy), needs.values(), strict=True):
        if not isinstance(wanted, frozenset | set) or not all(isinstance(need, Need) for need in wanted):
            raise PluginError(f"{origin(component)}: needs is {wanted!r:.80}: set it to a frozenset of Need")
    problems = [problem for section, wanted in needs.items() for problem in _ungiven(config, section, wanted)]
    if Capability.WEIGHT_UPDATE not in engine_capabilities(config):
        problems.append(
            f"engine={config.engine.name}: its weights cannot be updated, so it can only evaluate; train with torch "
            "or vllm"
        )
    if (method := rollout_method(policy)) is not None:
        problems += method.problems(config, components.step, engine_capabilities(config))
    problems += [] if problems else _rescoring(components, config)
    return [*problems, *_whole_group_rewards(components, config), *_aggregation(config, loss)]


def _rescoring(components: Components, config: Config) -> Iterator[str]:
    """Yield what the estimator needs of a teacher, a context and a probe, and does not get.

    Raises `PluginError` for an estimator that lacks a method of its needs.
    """
    estimator, who = components.advantage, f"advantage={config.advantage.name}"
    reads_text = Need.PROBED in estimator.needs or hasattr(estimator, "contexts")
    if Need.PROBED in estimator.needs and not callable(getattr(estimator, "probe", None)):
        raise PluginError(f"{origin(estimator)}: needs {Need.PROBED}: give it a method probe(task)")
    if config.train.teacher is not None and not SCORED & estimator.needs:
        yield f"train.teacher={config.train.teacher}: {who} reads no log-probabilities of a teacher; leave it out"
    if config.train.teacher is None and Need.RESCORED in estimator.needs and not hasattr(estimator, "contexts"):
        yield f"{who} needs a teacher; name its folder, as in train.teacher=FOLDER"
    if SCORED & estimator.needs and reads_text and is_agent(components.step):
        yield (
            f"{who} puts texts into the prompts of rollouts, and rollout_step={config.rollout_step.name} is an agent, "
            "whose requests have prompts of their own; choose another advantage"
        )


def _whole_group_rewards(components: Components, config: Config) -> Iterator[str]:
    """Return the rewards that cannot score a single rollout for a branch policy."""
    if not needs_rewards(components.branch_policy):
        return
    for reward in components.scorer.rewards:
        if not getattr(reward.reward, "per_rollout", False):
            yield (
                f"rewards.{reward.name}: judges complete groups (per_rollout is False), and branch_policy="
                f"{config.branch_policy.name} needs the reward of each rollout as soon as it ends; choose a reward "
                "that judges each rollout by itself, or another branch policy"
            )


def _ungiven(config: Config, section: str, wanted: frozenset[Need]) -> Iterator[str]:
    who = f"{section}={getattr(config, section).name}"
    provided = sorted(GIVEN[section])
    for need in sorted(wanted - set(provided)):
        yield f"{who} needs {need}, which is not given to it; allowed: {', '.join(provided)}"
    if Need.ENTROPY in wanted and Capability.ENTROPY not in engine_capabilities(config):
        yield f"{who} needs entropies, and engine {config.engine.name!r} reports none"


def ratio_is_one(config: Config, loss: PolicyLoss) -> bool:
    """Whether the loss compares the policy with itself: a step has one optimiser step, and pi_old is the policy."""
    train = config.train
    one_step = train.minibatches * train.epochs == 1 and train.old_logprobs is OldLogprobs.TRAINER
    return one_step and bool(getattr(loss, "reads_ratio", False))  # may be left out


def warn_of_ratio_one(config: Config, loss: PolicyLoss) -> None:
    """Warn if the ratio is always 1: every loss with a ratio is then REINFORCE, whatever its clip."""
    if ratio_is_one(config, loss):
        logger.warning(
            "train.minibatches=1 and train.epochs=1: a step has one optimiser step, so the ratio is 1 and the clipping "
            "of policy_loss=%s does nothing; set train.minibatches (papers: 4 to 16), or leave it where one step is "
            "meant (opo, remax, treerl)",
            config.policy_loss.name,
        )


def _aggregation(config: Config, loss: PolicyLoss) -> Iterator[str]:
    allowed: frozenset[str] | None = getattr(loss, "aggregation", None)  # may be left out
    if allowed is None:
        return
    if not isinstance(allowed, frozenset | set):
        raise PluginError(f"{origin(loss)}: aggregation is {allowed!r:.80}: set it to a frozenset of texts")
    who, modes = f"policy_loss={config.policy_loss.name}", [mode.value for mode in LossAggregation]
    for mode in sorted(allowed - set(modes)):
        yield f"{who} allows train.loss_aggregation={mode}, which there is not; there are: {', '.join(modes)}"
    if config.train.loss_aggregation not in allowed:
        yield (
            f"{who} is right only with train.loss_aggregation={' or '.join(sorted(allowed))}, got "
            f"{config.train.loss_aggregation}"
        )
