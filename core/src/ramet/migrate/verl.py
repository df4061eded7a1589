"""verl's overrides as a recipe. The table says what needs no thought; here is what depends on several keys.

Keys of verl's section `actor_rollout_ref` are written without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from ramet.errors import ConfigError
from ramet.migrate.translation import Translation, as_list

SEARCH = "rollout.tools.tool_instances.search.params"
ADVANTAGES = {
    "grpo": "grpo", "grpo_vectorized": "grpo", "gae": "gae", "rloo": "rloo", "rloo_vectorized": "rloo",
    "remax": "remax", "opo": "opo", "grpo_passk": "grpo_passk", "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}  # fmt: skip
LOSSES = {
    "vanilla": "ppo_clip", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "geo_mean": "gmpo", "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}  # fmt: skip
BOUNDS = {"ppo_clip": "clip", "gspo": "clip", "cispo": "clip", "gmpo": "clip", "dppo": "bound"}  # options of losses
BY_SEQUENCE = ("gspo", "gmpo")  # losses that average by sequence, in verl whatever loss_agg_mode says
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_IN_LOSS = {"kl": "k1+", "k1": "k1+", "kl+": "k1+", "k1+": "k1+", "abs": "abs", "abs+": "abs+", "mse": "k2",
              "k2": "k2", "low_var_kl": "k3", "k3": "k3", "low_var_kl+": "k3+", "k3+": "k3+"}  # fmt: skip
# What verl's own rewards are called here: by data source, with which verl chooses (the longest beginning counts), by
# the name of their file, and by a word in the name of the data's file, where its rows are not here.
REWARDS = {"openai/gsm8k": "gsm8k", "lighteval/MATH": "math", "DigitalLearningGmbH/MATH-lighteval": "math",
           "HuggingFaceH4/MATH-500": "math", "math_dapo": "math_dapo", "math": "math_dapo", "aime": "math_dapo",
           "searchR1_": "qa_em"}  # fmt: skip
FILES = {"gsm8k": "gsm8k", "math": "math", "math_reward": "math", "math_dapo": "math_dapo",
         "search_r1_like_qa_em": "qa_em", "deep_research": "deep_research"}  # fmt: skip
WORDS = {"gsm8k": "gsm8k", "dapo": "math_dapo", "aime": "math_dapo", "math": "math", "searchr1": "qa_em",
         "nq_": "qa_em", "hotpot": "qa_em"}  # fmt: skip
TOOLS = {"SandboxFusionTool": "python", "CustomSandboxFusionTool": "python", "SearchTool": "search"}  # by class
ENGINES = {"vllm": "vllm", "sglang": "vllm", "hf": "torch"}
OF_SEARCH = {"max_results": "max_results", "result_length": "result_chars", "zone": "zone", "location": "country"}
RELEASED = ("initial_rollouts", "beam_size", "branch_probability", "entropy_weight")
AEPO = ("enable_dynamic_rollouts", "initial_entropy_tokens")
BALANCED = "actor.enable_entropy_balanced_clipping"
OF_RULES = re.compile("reward_manager|custom_reward_function|reward_kwargs|overlong_buffer")  # keys of rewards
LAST_ONLY = 1_000_000  # train.save_every, which has no word for "only the last"


def translate(
    given: Mapping[str, Any],
    *,
    tasks: int | None = None,
    sources: Collection[str] | None = None,
    tools: Mapping[str, str] | None = None,
) -> Translation:
    """Translate overrides of `verl.trainer.main_ppo`. Raises `ConfigError` for a text where a number is needed.

    `tasks`: how many rows the training data has, `sources`: their data sources, `tools`: verl's class of each tool by
    its name, where these are known.
    """
    made = Translation(trainer="verl", job="train", given=given)
    made.translate_by_table()
    gpus = _devices(made)
    for part in (_model, _engine, _algorithm, _loss, _kl, _correction, _branching, set_names):
        part(made)
    _turns(made, tools or {})
    _rewards(made, sources)
    _batches(made, gpus)
    _offload(made, gpus)
    _schedule(made, tasks)
    _resampling(made)
    _sampling(made)
    made.left(*(key for key in given if ".megatron." in key), why="the policy is sharded by FSDP2, not by Megatron")
    made.finish()
    return made


def _devices(made: Translation) -> int:
    """Set workers and cluster. verl trains and samples on all of its GPUs in turn."""
    n, nodes, tp_key = "trainer.n_gpus_per_node", "trainer.nnodes", "rollout.tensor_model_parallel_size"
    gpus = made.number(n) * made.number(nodes)
    tp = made.number(tp_key) if made.get("rollout.name") != "hf" else 1
    if gpus < 1 or tp < 1:
        raise ConfigError(f"{n}={made.get(n)}, {nodes}={made.get(nodes)}, {tp_key}={tp}: must be at least 1")
    if gpus % tp:
        made.open(
            tp_key, f"{gpus} GPUs are not a multiple of {tp}, so verl does not start; engines of 1 GPU are written"
        )
        tp = 1
    made.choose("cluster", "ray", n, nodes)
    made.set("cluster.policy_workers", gpus, n, nodes)
    made.set("cluster.rollout_workers", gpus // tp, tp_key)
    if tp > 1:
        made.set("engine.params.tensor_parallel", tp, tp_key)
    return gpus


def _model(made: Translation) -> None:
    made.model_code("model.trust_remote_code")
    if rank := made.number("model.lora_rank"):
        made.adapter_scale("model.lora_alpha", rank)
        if made.get("model.target_modules") in (None, "all-linear"):
            made.same("model.target_modules", why="every linear layer has an adapter")
    strategy = made.get("actor.strategy")
    if strategy in (None, "fsdp", "fsdp2"):
        made.same("actor.strategy", why="the policy is sharded by FSDP2")
    else:
        made.open("actor.strategy", f"the policy is sharded by FSDP2, not by {strategy}: see docs/scaling.md")


def _engine(made: Translation) -> None:
    name, share, eager = str(made.get("rollout.name")), "rollout.gpu_memory_utilization", "rollout.enforce_eager"
    if name not in ENGINES:
        made.open("rollout.name", f"no engine like {name}; allowed: vllm, hf (engine=torch), sglang (engine=vllm)")
    ours = ENGINES.get(name, "vllm")
    made.choose("engine", ours, "rollout.name", why="engine=vllm; there is no sglang" if name == "sglang" else "")
    is_ours = made.get("rollout.dtype") in (None, "bfloat16")
    why = "" if is_ours else "model.dtype=bfloat16, of engine and policy together"
    made.set("model.dtype", "bfloat16", "rollout.dtype", why=why)
    if ours == "torch":
        made.left(share, eager, why="an option of vLLM, and the engine is torch")
        return
    made.set("engine.params.gpu_memory_utilization", made.get(share), share)
    if made.has(eager):
        made.set("engine.params.enforce_eager", made.get(eager), eager)


def _algorithm(made: Translation) -> None:
    key = "algorithm.adv_estimator"
    ours = ADVANTAGES.get(str(made.get(key)))
    if ours is None:
        allowed = ", ".join(sorted({*ADVANTAGES.values()}))
        made.open(key, f"no estimator like {made.get(key)}; allowed: advantage={allowed}")
    else:
        made.choose("advantage", ours, key)
    why = "in the published AEPO its advantage never ran, with any setting: advantage=grpo"
    made.ignored("actor.enable_entropy_balanced_advantage", why=why)


def _loss(made: Translation) -> None:
    mode, aggregation, average = "actor.policy_loss.loss_mode", "actor.loss_agg_mode", "train.loss_aggregation"
    theirs, wanted = made.get(mode), made.get(aggregation)
    loss = "aepo" if made.get(BALANCED) else LOSSES.get(str(theirs), "")
    if loss:
        made.choose("policy_loss", loss, *([BALANCED] if loss == "aepo" else []), mode)
    else:
        made.open(mode, f"no loss like {theirs}; allowed: policy_loss={', '.join(sorted({*LOSSES.values()}))}")
    if loss != "aepo":
        made.ignored(BALANCED, why="false: the loss is the usual one")
    _bounds(made, loss)
    if loss in BY_SEQUENCE:
        made.set(average, "seq-mean-token-mean", mode)
        made.ignored(aggregation, why=f"{theirs} averages by sequence, whatever it says")
    elif wanted in AGGREGATIONS:
        made.set(average, wanted, aggregation)
    elif wanted is not None:
        made.open(aggregation, f"no aggregation like {wanted}; allowed: {average}={', '.join(AGGREGATIONS)}")


def _bounds(made: Translation, loss: str) -> None:
    """Set where the ratio is clipped.

    In verl's own file low and high are 0.2, so only setting clip_ratio does nothing.
    """
    low, high, both, dual = (f"actor.clip_ratio{end}" for end in ("_low", "_high", "", "_c"))
    if loss not in BOUNDS:
        made.left(low, high, both, dual, why=f"bounds of another loss than policy_loss={loss or '(to decide)'}")
        return
    option = f"policy_loss.params.{BOUNDS[loss]}"
    unset = [end for end in (low, high) if made.has(end) and made.get(end) is None]  # then verl takes clip_ratio
    for end, name in ((low, "low"), (high, "high")):
        key = both if end in unset else end
        made.set(f"{option}_{name}", 0.2 if made.get(key) is None else made.get(key), key)
    if made.has(both) and not unset:
        inert = made.has(low) and made.has(high)
        theirs = "set" if inert else "0.2 in verl's own file"
        made.ignored(both, why=f"clip_ratio_low and clip_ratio_high, which are read instead, are {theirs}")
        if not inert and made.get(both) != 0.2:
            made.open(both, f"to have {made.get(both)}, set {option}_low and {option}_high")
    if loss == "dppo":
        mode = "actor.policy_loss.loss_mode"
        made.set("policy_loss.params.divergence", made.get(mode).removeprefix("dppo_"), mode)
    if loss in ("ppo_clip", "dppo"):
        made.set(f"policy_loss.params.{'dual_clip' if loss == 'ppo_clip' else 'ratio_cap'}", made.get(dual), dual)
    else:
        made.left(dual, why=f"policy_loss={loss} has no second bound")


def _kl(made: Translation) -> None:
    """Set the KL. Without its switch a coefficient changes nothing in verl."""
    use_loss, coefficient, kind = "actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type"
    if made.get("algorithm.use_kl_in_reward"):
        _kl_in_reward(made)
        if made.get(use_loss):
            made.left(use_loss, coefficient, kind, why="one KL is used here, and the one in the reward was taken")
        else:
            made.same(use_loss, why="the KL is in the reward")
        return
    made.same("algorithm.use_kl_in_reward", why="the KL is not in the reward")
    weight = made.fraction(coefficient)
    if not made.get(use_loss):
        made.set("train.kl_coef", 0.0, use_loss)
    elif weight:
        made.set("train.kl_coef", weight, use_loss, coefficient)
        _kl_estimator(made, kind)
    else:
        made.set("train.kl_coef", 0.0, use_loss, coefficient, why="0: no reference is loaded; verl loads one")
        made.ignored(kind, why="the coefficient is 0")


def _kl_estimator(made: Translation, key: str) -> None:
    theirs = str(made.get(key))
    if (ours := KL_IN_LOSS.get(theirs)) is None:
        allowed = ", ".join(dict.fromkeys(KL_IN_LOSS.values()))
        made.open(key, f"no estimator like {theirs}; allowed: train.kl_estimator={allowed}")
        return
    why = "k1 has no gradient towards the reference in the loss; k1+ has its value, and the KL's gradient"
    made.set("train.kl_estimator", ours, key, why=why if theirs in ("kl", "k1") else "")


def _kl_in_reward(made: Translation) -> None:
    coefficient, kind, target, horizon = (
        f"algorithm.kl_ctrl.{end}" for end in ("kl_coef", "type", "target_kl", "horizon")
    )
    weight = made.fraction(coefficient)
    made.set("train.kl_coef", weight, coefficient)
    if weight:
        made.set("train.kl_estimator", "k1-reward", "algorithm.use_kl_in_reward")
    if made.get("algorithm.kl_penalty") in ("kl", "k1"):
        made.same("algorithm.kl_penalty", why="k1, as always in the reward")
    else:
        made.left("algorithm.kl_penalty", why="in the reward the estimator is always k1")
    if made.get(kind) != "adaptive":
        made.same(kind, why="the coefficient is fixed")
        return
    made.set("train.kl_target", made.get(target), kind, target)
    if made.get(horizon) in (None, 10_000):
        made.same(horizon, why="10000, as always here")


def _correction(made: Translation) -> None:
    """Set the importance sampling of the engine's probabilities, which is off in verl unless asked for."""
    switches = ("algorithm.rollout_correction.rollout_is", "algorithm.rollout_is")
    switch = next((key for key in switches if made.get(key)), switches[0])
    kind, cap, level = made.get(switch), f"{switch}_threshold", "algorithm.rollout_is_level"
    if kind is True:  # of versions in which the level is a separate key
        kind = made.get(level)
        made.same(level, why=f"train.off_policy.tis_level={kind}")
    if kind in ("token", "sequence"):
        made.set("train.tis_cap", made.get(cap), cap, switch)
        made.set("train.off_policy.tis_level", kind, switch)
    else:
        weight = made.fraction("actor.tis_imp_ratio_cap")
        switches_off = filter(made.has, switches)
        made.set("train.tis_cap", weight if weight > 0 else None, "actor.tis_imp_ratio_cap", *switches_off)


def _sampling(made: Translation) -> None:
    """Name the fixed parts of the sampling, and set the sampling of validations, which are greedy unless asked
    otherwise.
    """
    for name, whole in (("top_p", (1, None)), ("top_k", (-1, 0, None)), ("do_sample", (True, None))):
        if made.get(f"rollout.{name}") in whole:
            made.same(f"rollout.{name}", why="training samples from all tokens")
        else:
            why = "training samples from all tokens, since its probabilities are the policy's"
            made.left(f"rollout.{name}", why=why)
    sample, n = "rollout.val_kwargs.do_sample", "rollout.val_kwargs.n"
    if made.get(sample):
        made.same(sample, why="validations sample")
        return
    made.set("train.eval_sampling.temperature", 0.0, sample)
    if made.number(n, 1) > 1:
        made.set("train.eval_k", 1, n, why="train.eval_k=1: validations are greedy, so all rollouts would be the same")


def _turns(made: Translation, tools: Mapping[str, str]) -> None:
    """Choose the rollout step and the tools."""
    mode, enable, form, loop = (
        f"rollout.{name}" for name in ("mode", "multi_turn.enable", "multi_turn.format", "agent.default_agent_loop")
    )
    made.same(mode, why="rollouts always run at the same time, each at its own pace")
    is_empty = made.given.get(made.full(enable)) == ""
    if is_empty:
        made.ignored(enable, why="empty, which verl takes for false")
    if made.get(mode) == "sync_with_tool":
        made.choose("rollout_step", "tags", mode)
        made.ignored(form, loop, *([] if is_empty else [enable]), why=f"not read with {mode}=sync_with_tool")
        _published_tools(made)
        return
    _limits_of_results(made, [])
    if made.get(enable) or made.get(loop) == "tool_agent":
        made.choose("rollout_step", "hermes", enable, loop)
        limits = ("rollout.max_tool_calls", 1_000_000), ("rollout.max_turns", 1_000_000)
        made.values |= {ours: most for ours, most in limits if ours not in made.values}  # verl has no limit unless set
        _tools(made, tools)
        if made.get(form) in ("hermes", "llama3_json", None):
            made.same(form, why="rollout_step=hermes reads this form")
        else:
            made.open(form, f"no rollout step reads the form {made.get(form)}; see docs/tool_calls.md")
    else:
        made.choose("rollout_step", "tags", enable, loop)
        made.set("rollout_step.system_prompt", "never", enable)  # verl adds no text to a prompt
        made.ignored(form, why="no calls are made")


def _tools(made: Translation, tools: Mapping[str, str]) -> None:
    """Choose the tools, under their names in the launch's file, where Ramet has one that does the same."""
    key = "rollout.multi_turn.tool_config_path"
    used = {name: TOOLS.get(kind.rpartition(".")[2]) for name, kind in tools.items()}
    if not used or None in used.values():
        unknown = f" (nothing does what {', '.join(n for n, ours in used.items() if not ours)} does)" if used else ""
        made.open(key, f"name the tools that the model may call: tools=[NAME] in the recipe{unknown}")
        return
    why = "; ".join(f"{name} is Ramet's {ours}, with its own options" for name, ours in used.items())
    made.choose("tools", [name for name, ours in used.items() if name == ours], key, why=why)
    made.values |= {f"tools.{name}.use": ours for name, ours in used.items() if name != ours}


def _published_tools(made: Translation) -> None:
    """Choose the tools of ARPO's launches and set their options. A config file without search has none."""
    classes = {name: f"rollout.tools.tool_instances.{name}.class_path" for name in ("python", "search")}
    has_both = made.has(classes["search"]) or not made.has(classes["python"])  # launches name only search
    names = ["python", "search"] if has_both else ["python"]
    why = f"rollout_step=tags tools=[{','.join(names)}], as published"
    made.choose("tools", names, "rollout.mode", why=why)
    made.same(*filter(made.has, classes.values()), why="as published")
    for key, option, first in (("max_workers", "concurrency", 0), ("retry_count", "retries", 1)):
        if made.get(f"rollout.tools.{key}") is not None:
            for name in names:
                n = max(0, made.number(f"rollout.tools.{key}") - first)
                made.set(f"tools.{name}.{option}", n, f"rollout.tools.{key}")
    limit = "rollout.tools.call_limit"
    if made.get(limit) is not None:
        made.set("rollout.max_tool_calls", made.number(limit), limit)
    else:
        why = "it is in the launch's config file, 3 for reasoning and 6 for deep search: set rollout.max_tool_calls"
        made.open(limit, why)
    for theirs, ours in OF_SEARCH.items():
        if "search" in names and made.get(f"{SEARCH}.{theirs}") is not None:
            made.set(f"tools.search.params.{ours}", made.get(f"{SEARCH}.{theirs}"), f"{SEARCH}.{theirs}")
    if made.has(f"{SEARCH}.cache_file"):
        why = "read it into the store of searches: `ramet cache import FILE`, and name its folder in cache_folder"
        made.open(f"{SEARCH}.cache_file", why)
    if made.has(f"{SEARCH}.api_key"):
        made.open(f"{SEARCH}.api_key", "a key is not written down: set the variable BRIGHTDATA_API_KEY")
    _limits_of_results(made, names)


def _limits_of_results(made: Translation, names: list[str]) -> None:
    key = "rollout.multi_turn.max_tool_response_length"
    if not made.has(key):
        return
    tokens = max(1, made.number(key) // 4)
    for name in names:
        made.set(f"tools.{name}.max_result_tokens", tokens, key, why=f"characters in verl: about {tokens} tokens")
    if not names:
        made.left(key, why=f"characters in verl, tokens here: about {tokens}, as tools.NAME.max_result_tokens={tokens}")


def _branching(made: Translation) -> None:
    keys, aepo = [f"rollout.{name}" for name in RELEASED], [f"rollout.{name}" for name in AEPO]
    is_aepo = any(map(made.has, (*aepo, BALANCED)))
    if not (is_aepo or any(map(made.has, keys)) or made.get("rollout.mode") == "sync_with_tool"):
        made.choose("branch_policy", "none")
        return
    made.choose("branch_policy", "aepo_release" if is_aepo else "arpo_release", *keys)
    for key, name in zip(keys, RELEASED, strict=True):
        if made.is_read(made.full(key)):  # some whole numbers are written as 1.
            whole = name in ("initial_rollouts", "beam_size")
            made.set(f"branch_policy.params.{name}", made.number(key) if whole else made.fraction(key), key)
    for key, name in zip(aepo, AEPO, strict=True):
        if made.has(key):
            made.set(f"branch_policy.params.{name}", made.get(key), key)


def set_names(made: Translation) -> None:
    """Set the run's name, its folder and its trackers, of either trainer of verl."""
    folder, name = "trainer.default_local_dir", str(made.get("trainer.experiment_name") or "")
    made.set_run(name, "trainer.experiment_name")
    if made.get(folder):
        path = PurePosixPath(str(made.get(folder)))
        root = path.parent if path.name == name else path
        made.set("run.root", str(root), folder, why=f"run.root={root}: a run is in run.root/run.name")
    made.set_trackers("trainer.logger", "trainer.project_name", "wandb.project")


def _rewards(made: Translation, sources: Collection[str] | None) -> None:
    """Choose the rewards: the launch's own function, or by the rows' data sources, or by the name of their file."""
    managers = ("reward_model.reward_manager", "reward.reward_manager.name")
    manager = next(filter(made.has, managers), managers[0])
    if made.get("reward_model.enable"):
        why = (
            "its scores take the place of every rule, so no reward is chosen: name rewards=[llm_judge], or one of yours"
        )
        made.open("reward_model.enable", why)
        made.ignored(*filter(OF_RULES.search, made.given), why="the scores of the reward model take its place")
        return
    made.same("reward_model.enable", why="no model scores")
    if made.get(manager) not in ("naive", "dapo"):
        made.left(manager, why="rewards are always computed one by one, while other rollouts run")
    names = _own_reward(made)
    if names:
        made.same(manager, why="the function scores every answer")
    else:
        names = _by_source(made, manager, sources) if sources else _by_file(made, manager)
    _overlong(made, names)


def _own_reward(made: Translation) -> list[str]:
    """Choose what scores as the launch's own function does; nothing without one."""
    prefix = "reward." if made.has("reward.custom_reward_function.path") else ""
    file, function = (f"{prefix}custom_reward_function.{name}" for name in ("path", "name"))
    path = str(made.get(file) or "")
    if not path:
        made.ignored(file, why="empty")
        return []
    ours = FILES.get(path.rpartition("reward_score/")[2].removesuffix(".py")) if "reward_score/" in path else None
    if ours is None:
        made.choose("rewards", ["custom"], file, function)
        made.set("rewards.custom.params.path", path, file)
        made.set("rewards.custom.params.function", str(made.get(function)), function)
        return ["custom"]
    released = "deep_research_release is the published code, with its mistakes"
    why = f"rewards=[{ours}]; {released if ours == 'deep_research' else 'compare its options with the file'}"
    made.choose("rewards", [ours], file, function, why=why)
    return [ours]


def _by_source(made: Translation, manager: str, sources: Collection[str]) -> list[str]:
    """Choose the rewards of the rows' data sources, each for its own."""
    judged: dict[str, list[str]] = {}
    for source in sorted(sources):
        beginning = max((name for name in REWARDS if source.startswith(name)), key=len, default="")
        judged.setdefault(REWARDS.get(beginning, ""), []).append(source)
    if unknown := judged.pop("", []):
        why = f"no reward of verl's is known for data source {', '.join(unknown[:3])}: name one, as in rewards=[math]"
        made.open(manager, why)
    if judged:
        made.choose("rewards", [*judged], manager, why=f"rewards=[{','.join(judged)}], by the rows' data source")
    if len(judged) > 1 or (judged and unknown):
        made.values |= {f"rewards.{name}.sources": its_sources for name, its_sources in judged.items()}
    return [*judged]


def _by_file(made: Translation, manager: str) -> list[str]:
    files = " ".join(as_list(made.get("data.train_files") or "")).lower()
    name = next((ours for word, ours in WORDS.items() if word in files), None)
    if name is None:
        made.open(manager, "verl chooses the reward by the rows' data source: name Ramet's, as rewards=[math]")
        return []
    why = f"rewards=[{name}], by the name of the file; verl goes by the rows' data source (rewards.NAME.sources)"
    made.choose("rewards", [name], manager, why=why)
    return [name]


def _overlong(made: Translation, names: list[str]) -> None:
    """Add DAPO's penalty of long answers, where it is switched on."""
    longest, off = "reward_model.reward_kwargs.max_resp_len", "overlong_buffer is not enabled"
    for buffer in ("reward_model.reward_kwargs.overlong_buffer_cfg", "reward_model.overlong_buffer"):
        if not made.get(f"{buffer}.enable"):
            made.ignored(f"{buffer}.enable", why=off)
            continue
        made.choose("rewards", [*names, "overlong"], f"{buffer}.enable")
        limit = made.number(longest) or made.number("data.max_response_length")
        made.set("rewards.overlong.params.max_tokens", limit, longest)
        for end, ours in (("len", "params.buffer_tokens"), ("penalty_factor", "weight")):
            if made.get(f"{buffer}.{end}") is not None:
                made.set(f"rewards.overlong.{ours}", made.get(f"{buffer}.{end}"), f"{buffer}.{end}")
    if "overlong" not in made.choices.get("rewards", []):
        made.ignored(longest, why=off)


def _batches(made: Translation, gpus: int) -> None:
    """Set the mini-batches, and the tokens of a pass. verl reads one of three keys for these, by use_dynamic_bsz."""
    mini, dynamic, tokens = "actor.ppo_mini_batch_size", "actor.use_dynamic_bsz", "actor.ppo_max_token_len_per_gpu"
    per_gpu, rows, ours = (
        "actor.ppo_micro_batch_size_per_gpu",
        "actor.ppo_micro_batch_size",
        "policy.max_microbatch_tokens",
    )
    n, of_update = made.number("data.train_batch_size"), made.number(mini)
    if of_update < 1 or n % of_update:
        made.open(mini, f"{n} prompts of a step are not a multiple of {of_update}: choose train.minibatches yourself")
    else:
        made.set("train.minibatches", n // of_update, mini)
    if made.get(dynamic):
        made.set(ours, made.number(tokens), tokens, dynamic)  # both multiply it by the ranks that share a sequence
        return
    made.same(dynamic, why="micro-batches are always measured in tokens")
    longest = made.number("data.max_prompt_length") + made.number("data.max_response_length")
    if made.get(per_gpu):
        made.set(ours, made.number(per_gpu) * longest, per_gpu)
        made.ignored(rows, why="ppo_micro_batch_size_per_gpu is set")
    elif made.get(rows):
        made.set(ours, max(1, made.number(rows) // gpus) * longest, rows)


def _offload(made: Translation, gpus: int) -> None:
    parameters, optimizer, size = (
        f"actor.fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "fsdp_size")
    )
    offload, why = "all" if made.get(parameters) else "optimizer" if made.get(optimizer) else "none", ""
    if offload == "all" and gpus == 1:
        offload, why = "optimizer", "policy.offload=optimizer: on 1 GPU nothing is sharded, and parameters stay there"
    if keys := [*filter(made.has, (parameters, optimizer))]:
        made.set("policy.offload", offload, *keys, why=why)
    shards = made.number(size, -1)
    if shards > 0 and gpus % shards:
        made.open(size, f"{gpus} GPUs are not a multiple of {shards}: set policy.replicas")
    else:
        made.set("policy.replicas", gpus // shards if shards > 0 else 1, size)


def _schedule(made: Translation, tasks: int | None) -> None:
    steps, every = _steps(made, tasks), made.number("trainer.save_freq")
    why = "" if every > 0 else "only the last step is saved"
    made.set("train.save_every", every if every > 0 else steps or LAST_ONLY, "trainer.save_freq", why=why)
    kept = "trainer.max_actor_ckpt_to_keep"
    if made.get(kept) is None:
        made.set("train.keep_checkpoints", 3, kept, why="train.keep_checkpoints=3, the newest; verl keeps all of them")
    warmup, ratio = "actor.optim.lr_warmup_steps", "actor.optim.lr_warmup_steps_ratio"
    share = made.fraction(ratio)
    if made.number(warmup, -1) >= 0:
        made.set("policy.warmup_steps", made.number(warmup), warmup)
        made.ignored(ratio, why="lr_warmup_steps is set")
    elif not share:
        made.same(warmup, ratio, why="no warm-up")
    elif steps is None:
        made.open(ratio, f"{share:g} of the steps: set policy.warmup_steps when train.steps is known")
    else:
        made.set("policy.warmup_steps", int(share * steps), ratio)
        made.same(warmup, why="lr_warmup_steps_ratio is read instead")


def _steps(made: Translation, tasks: int | None) -> int | None:
    """Set the steps, and return them where they are known. verl reads batches of `gen_batch_size` where it is set."""
    total, epochs, batch = "trainer.total_training_steps", "trainer.total_epochs", "data.train_batch_size"
    if made.get(total):
        made.set("train.steps", made.number(total), total)
        return made.number(total)
    passes, most = made.number(epochs), made.number("data.train_max_samples", -1)
    n_read = made.number("data.gen_batch_size") or made.number(batch)
    if tasks is not None and most > 0:
        tasks = min(tasks, most)
    if tasks is not None and 0 < n_read <= tasks:
        made.set("train.steps", passes * (tasks // n_read), epochs)
        return passes * (tasks // n_read)
    if tasks is not None:
        made.open(batch, f"the data has {tasks} tasks, fewer than one step: verl does not start")
    elif passes == 1 and n_read == made.number(batch):
        made.same(epochs, why="one pass, as without train.steps")
        return None
    steps = f"{passes} x (tasks // {n_read})"
    made.open(epochs, f"{passes} passes: set train.steps to {steps}, or give --tasks; otherwise it is one pass")
    return None


def _resampling(made: Translation) -> None:
    """Set how often groups of equal rewards are replaced (DAPO)."""
    enable, most, metric = (f"algorithm.filter_groups.{name}" for name in ("enable", "max_num_gen_batches", "metric"))
    if not made.get(enable):
        made.same(enable, why="groups of equal rewards stay")
        return
    if (limit := made.number(most)) > 0:
        made.set("train.resample_rounds", limit - 1, most, enable)
    else:
        made.set("train.resample_rounds", 9, enable, most, why="no limit in verl; 9 further rounds are written")
    rewards = made.choices.get("rewards", [])
    if made.get(metric) in ("acc", "score") and rewards[-1:] == ["overlong"] and rewards[:-1]:
        made.set(f"rewards.{rewards[0]}.resample", True, metric)
