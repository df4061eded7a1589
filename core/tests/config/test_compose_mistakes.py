"""Every mistake in a configuration gives a message with key, value and what is allowed; all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.catalog import Catalog, Choice
from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.config.secrets import written_secrets
from ramet.plugins import load_plugins
from ramet.runs.manifest import PluginRecord, make_manifest, write_manifest

MODEL = "model.path=m"
Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["train.step=3"], ["train.step: no such key", "Did you mean 'train.steps'?"]),
        (["+train.stepps=3"], ["train.stepps: no such key", "'train.steps'"]),
        (["+unknown.key=1"], ["unknown.key: no such key", "the configuration has: run, data"]),
        (["train.lr=1"], ["train.lr: no such key", "Did you mean 'policy.lr'? train has:"]),
        (["policy.lr=fast"], ["policy.lr: expected float, got 'fast'"]),
        (["train.steps=1.5"], ["train.steps: expected int or null, got 1.5"]),
        (["run.private=perhaps"], ["run.private: expected bool, got 'perhaps'"]),
        (["run.private=3"], ["run.private: expected bool, got 3"]),
        (["run.private='1'"], ["run.private: expected bool, got '1'"]),
        (["run.private=0.0"], ["run.private: expected bool, got 0.0"]),
        (["run={private: 1}"], ["run.private: expected bool, got 1"]),
        (["tools=[python]", "tools.python.params.strict=3"], ["tools.python.params.strict: expected bool, got 3"]),
        (["data.train=''"], ["expected list[str], got ''; write data.train=[]"]),
        (["train.old_logprobs=foo"], ["expected one of trainer, engine, got 'foo'"]),
        (["rollout=3"], ["rollout: is a section, got 3", "rollout.group_size"]),
        (["rollout.group_size.x=3"], ["rollout.group_size is a value"]),
        (["branch_policy=arpoo"], ["branch_policy: no 'arpoo'", "none, random", "failed to load: brk"]),
        (["tools=[pyhton]"], ["tools: no 'pyhton'. ", "'python'"]),
        (["branch_policy=[none,random]"], ["branch_policy: takes one name"]),
        (["branch_policy=null"], ["branch_policy: null is not a choice; allowed: none, random"]),
        (["branch_policy.name=random"], ["choose with branch_policy=random"]),
        (["advantage=rloo", "advantage.params.x=1"], ["'rloo' takes no options"]),
        (["branch_policy=random", "branch_policy.params.probability=2"], ["branch_policy.params.probability ", " 2"]),
        (["branch_policy=random", "branch_policy.params.initial_rollouts=0"], ["params.initial_rollouts ", " 0"]),
        (["tools=[echo]", "tools.echo.params.x=1"], ["'echo' takes no options"]),
        (["tools.python.timeout_s=1"], ["tools.python.timeout_s: 'python' is not chosen; add tools=[python]"]),
        (["tools=[python]", "tools.python.params.memory=1"], ["Did you mean 'tools.python.params.memory_mb'?"]),
        (["tools=[python]", "tools.python.params.memory_mb=much"], ["memory_mb: expected int, got 'much'"]),
        (
            ["tools=[python]", "tools.python.params.memory_mb=0"],
            ["tools.python.params.memory_mb must be at least 1, got 0"],
        ),
        (["tools=[python]", "tools.python.params={level: odd}"], ["tools.python.params: "]),
        (["tools=[search]"], ["tools.search.params.key: missing"]),
        (["experiment=nope"], ["experiment: no 'nope'", "hydra_configs/"]),
        (["algorithm=grpoo"], ["algorithm: no 'grpoo'. Did you mean 'grpo'?"]),
        (["train.steps=1,2"], ["several values for one key; a list is written train.steps=[a,b]"]),
        (["~train.steps"], ["deleting is not possible"]),
        (["train.steps"], ["cannot read 'train.steps'", "write key=value"]),
        (
            ["run.root=/tmp/räume"],
            ["cannot read 'run.root=/tmp/räume'", "put the value in quotes", "\"run.root='VALUE'\""],
        ),
        (["data.train=[a(1).jsonl]"], ["cannot read", "\"data.train=['VALUE']\""]),
        (["hydra.run.dir=/x"], ["Hydra's own keys cannot be set"]),
        (["run.root=${oc.env:RAMET_NO_SUCH}"], ["run.root: environment variable RAMET_NO_SUCH is not set"]),
        (["run.root=${no.such}"], ["run.root: ", "no.such"]),
        (["sft.lr=1"], ["sft.lr: `ramet train` has no section 'sft' (used by: sft, data)"]),
        (["evaluate.k=2"], ["evaluate.k: ", "set train.eval_k"]),
    ],
)
def test_one_mistake_gives_one_problem_that_names_it(problems: Problems, overrides: list[str], expected: list[str]):
    found = problems(MODEL, *overrides)
    assert len(found) == 1
    assert all(part in found[0] for part in expected), found[0]


@pytest.mark.parametrize(
    ("key", "text", "refused"),
    [
        ("tools.bing.params.api_key", "x", True),
        ("rewards.judge.params.password", "x", True),
        ("tools.bing.params.key", "sk-0123456789abcdef", True),
        ("tools.bing.params.keys[0]", "sk-0123456789abcdef", False),
        ("tools.bing.params.api_key", "${oc.env:BING_KEY}", False),
        ("tools.bing.params.api_key", "", False),
        ("tools.issues.params.headers.Authorization", "Basic abc", True),
        ("tools.issues.params.headers.Authorization", "Bearer ${oc.env:TOKEN}", False),
        ("tools.issues.params.headers.X-API-Key", "abc", True),
        ("tools.bing.params.stop_token", "</search>", False),
        ("data.columns.key", "extra_info", False),
        ("train.max_tokens", "sk-0123456789abcdef", False),
    ],
)
def test_a_secret_is_known_by_its_name_and_where_that_is_not_enough_by_its_looks(key: str, text: str, refused: bool):
    assert bool(list(written_secrets([(key, text)]))) == refused


def test_a_secret_that_is_written_down_is_refused_and_not_repeated(problems: Problems):
    [problem] = problems(MODEL, "tools=[search]", "tools.search.params.key=sk-0123456789abcdef")
    assert problem.startswith("tools.search.params.key: a secret must not be written down")
    assert "tools.search.params.key='${oc.env:VARIABLE}'" in problem
    assert "sk-0123456789abcdef" not in problem


def test_all_mistakes_are_reported_together(problems: Problems):
    found = problems(
        "train.step=1", "foo=2", "sft.lr=1", "policy.lr=x", "branch_policy=arpoo", "oops", "tools=[search]"
    )
    starts = ["sft.lr", "cannot read 'oops'", "branch_policy:", "train.step", "foo", "policy.lr", "model.path: missing",
              "tools.search.params.key: missing", "data.train: missing", "rewards: none chosen"]  # fmt: skip
    assert len(found) == len(starts)
    assert all(any(problem.startswith(start) for problem in found) for start in starts)


def test_a_wrong_value_is_told_with_wrong_keys_and_missing_ones(problems: Problems):
    found = problems(
        "model.pth=m", "evaluate.k=0", "tools=[python]", "tools.python.timeout_s=0", "tools.python.params.memory_mb=0",
        "run.name=a b", job="eval",
    )  # fmt: skip
    starts = ["model.pth: ", "model.path: ", "tools.python.params.memory_mb ", "tools.python.timeout_s=0.0: ",
              "evaluate.k=0: ", "run.name=a b: ", "benchmarks: none chosen"]  # fmt: skip
    assert [problem[: len(start)] for problem, start in zip(found, starts, strict=True)] == starts


def test_a_value_of_a_component_that_nobody_offers_is_not_looked_at(problems: Problems):
    *found, steps = problems(MODEL, "tools.a.use=nope", "tools.a.timeout_s=0", "train.steps=0")
    assert found == problems(MODEL, "tools.a.use=nope") and steps.startswith("train.steps=0: ")


def test_a_key_that_another_key_replaces_in_evaluation_is_refused(problems: Problems):
    assert problems(MODEL, "rollout.temperature=1", job="eval") == [
        "rollout.temperature: `ramet eval` does not read it; set evaluate.sampling.temperature"
    ]


@pytest.mark.parametrize(
    ("job", "key", "close", "listed"),
    [
        ("train", "lr", " Did you mean 'policy.lr'?", ""),
        ("sft", "lr", " Did you mean 'sft.lr'?", ""),
        ("sft", "lora_rank", " Did you mean 'sft.lora_rank'?", ""),
        ("sft", "rollout_workers", " Did you mean 'rollout_step'?", ""),
        ("sft", "nothing_like_it", "",
         " the configuration has: run, model, rollout_step, tools, sft, cluster, trackers, wandb"),
        ("eval", "temperature", " Did you mean 'evaluate.sampling.temperature'?", ""),
        ("eval", "rollout.temprature", "",
         " rollout has: max_turns, max_tool_calls, max_response_tokens, first_tokens, max_concurrent, deadline_s, "
         "max_masked_share"),
        ("data", "model.lr", " Did you mean 'sft.lr'?",
         " model has: path, tokenizer, chat_template, chat_template_kwargs, dtype, attention, device, "
         "trust_remote_code"),
    ],
)  # fmt: skip
def test_only_keys_that_the_job_accepts_are_suggested_and_listed(
    problems: Problems, job: str, key: str, close: str, listed: str
):
    assert problems(MODEL, f"{key}=1", job=job) == [f"{key}: no such key.{close}{listed}"]


def test_a_key_that_means_nothing_to_the_job_is_refused(problems: Problems):
    assert problems(MODEL, "cluster.rollout_workers=2", job="sft") == [
        "cluster.rollout_workers: `ramet sft` does not read it; leave the key out"
    ]


def test_a_benchmark_that_nobody_offers_is_named(problems: Problems):
    [problem] = problems(MODEL, "benchmarks=[arithmatic]", job="eval")
    assert problem.startswith("benchmarks: no 'arithmatic'. Did you mean 'arithmetic'?")


def test_options_that_cannot_be_typed_are_fatal_only_for_who_selects_them(problems: Problems):
    assert compose([MODEL, "benchmarks=[arithmetic]"], job="eval").config.benchmarks.keys() == {"arithmetic"}
    found = problems(MODEL, "benchmarks=[untypable]", job="eval")
    assert "'untypable' of plugin odd (dist) cannot be used" in found[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("train:\n  stepps: 3\n", ["experiment/bad", "stepps", "'train.steps'"]),
        ("train:\n  steps: soon\n", ["experiment/bad", "soon", "train.steps"]),
        (
            "defaults:\n  - override /branch_policy: arpo\n",
            ["branch_policy: no 'arpo'", "brk", "(asked for by experiment=bad)"],
        ),
        ("nonsense: 1\n", ["experiment/bad", "nonsense"]),
        ("policy:\n  lr: 1\n  lr: 2\n", ["bad.yaml", "line 4", "duplicate key lr"]),
        ("policy: [1\n", ["bad.yaml", "line 2"]),
        ("run:\n  name: no\n", ["run.name: takes a text, got the boolean False", "no, off or false", "in quotes"]),
        ("tools:\n  search:\n    params: {key: on}\n", ["tools.search.params.key: takes a text", "yes, on or true"]),
        ("train:\n\tsteps: 3\n", ["bad.yaml", "line 3"]),
        ("tools:\n  pyhton:\n    timeout_s: 3\n", ["tools: no 'pyhton'. ", "'python'"]),
        (
            "tools:\n  python:\n    params: {memory: 3}\n",
            ["tools.python.params", "memory", "allowed: memory_mb, level"],
        ),
        ("branch_policy:\n  name: random\n  params: {roots: x}\n", ["branch_policy.params", "roots"]),
        ("policy_loss:\n  name: nope\n", ["policy_loss: no 'nope'"]),
    ],
)
def test_a_mistake_in_a_preset_is_named(problems: Problems, workdir: Path, body: str, expected: list[str]):
    path = workdir / "hydra_configs/experiment/bad.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\n" + body, encoding="utf-8")
    found = "\n".join(problems(MODEL, "experiment=bad"))
    assert all(part in found for part in expected), found


def test_a_preset_that_is_no_text_is_named(problems: Problems, workdir: Path):
    path = workdir / "hydra_configs/experiment/bad.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# @package _global_\npolicy:\n  lr: \xff\n")
    assert problems(MODEL, "experiment=bad") == ["a file of experiment=bad is not UTF-8: invalid start byte b'\\xff'"]


@pytest.mark.parametrize("text", ["no", "true", "1e3", "010", "1_000"])
def test_a_key_that_takes_a_text_takes_what_was_typed(workdir: Path, text: str):
    assert compose([MODEL, f"run.name={text}"], job="train").config.run.name == text


def test_numbers_of_yaml_are_numbers_and_quoted_words_are_texts(workdir: Path):
    path = workdir / "hydra_configs/experiment/good.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\npolicy:\n  lr: 1e-6\nrun:\n  name: 'no'\n  private: no\n")
    config = compose([MODEL, "experiment=good"], job="train").config
    assert (config.policy.lr, config.run.name, config.run.private) == (1e-6, "no", False)


@pytest.mark.parametrize(
    ("distribution", "told"),
    [
        ("ramet-loo", "ramet-loo 1.2 offered it: install it again"),
        ("module loo", "the module loo offered it: name it in RAMET_PLUGINS again"),
    ],
)
def test_a_plugin_that_is_gone_is_named_by_what_the_run_recorded(
    problems: Problems, tmp_path: Path, distribution: str, told: str
):
    resolved = Resolved(job="train", config=Config(), text="", overrides=[], set_by_user=frozenset())
    manifest = make_manifest(resolved)
    manifest.plugins.append(
        PluginRecord(name="loo", distribution=distribution, version="1.2", contract="1",
                     offers={"advantage": ["leave_one_out"]}, broken=None)
    )  # fmt: skip
    folder = tmp_path / "elsewhere" / "first"
    folder.mkdir(parents=True)
    write_manifest(folder / "manifest.json", manifest)
    where = [f"run.root={folder.parent}", "run.name=first"]
    own = [entry.name for entry in load_plugins().registries.advantages if entry.distribution == "ramet"]
    names = ", ".join(sorted(own))  # the fixture blocks the others
    installed = f"Installed: {names}. Plugins that failed to load: brk (ImportError: no module x)"
    assert problems(MODEL, *where, "advantage=leave_one_out") == [
        f"advantage: no 'leave_one_out'. When this run began, {told}. {installed}"
    ]
    assert problems(MODEL, *where, "advantage=never_seen") == [f"advantage: no 'never_seen'. {installed}"]
    assert problems(MODEL, "run.name=second", "advantage=leave_one_out") == [
        f"advantage: no 'leave_one_out'. {installed}"
    ]


def test_a_file_is_no_benchmark_and_is_told_where_files_go(problems: Problems):
    [problem] = problems(MODEL, "benchmarks=[data/mine.jsonl]", job="eval")
    assert problem.startswith(
        "benchmarks: 'data/mine.jsonl' is a file, and benchmarks are chosen by name: "
        "benchmarks.own.use=files 'benchmarks.own.params.paths=[data/mine.jsonl]' "
        "'benchmarks.own.params.metrics={em: qa_em}' measures on it (ramet-benchmarks); `ramet train` validates on a "
        "file with data.valid. Installed: arithmetic."
    )


def test_modules_are_mentioned_where_nothing_else_says_why_a_name_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAMET_PLUGINS", raising=False)
    catalog = Catalog(components={"rewards": {}})
    own = (
        "A module of yours is loaded with PYTHONPATH=FOLDER RAMET_PLUGINS=MODULE, a package that is installed by its "
        "[project.entry-points.ramet]"
    )
    assert catalog.unknown("rewards", "mine", ["math"]) == f"rewards: no 'mine'. Installed: math. {own}"
    assert catalog.unknown("rewards", "mth", ["math"]) == "rewards: no 'mth'. Did you mean 'math'? Installed: math"
    assert catalog.unknown("engine", "mine", ["torch"]) == "engine: no 'mine'. Installed: torch"
    monkeypatch.setenv("RAMET_PLUGINS", "other")
    assert catalog.unknown("rewards", "mine", ["math"]) == "rewards: no 'mine'. Installed: math"


def test_a_name_of_another_group_is_pointed_to():
    offered = [("branch_policy", "value_guided"), ("tools", "python")]
    catalog = Catalog(components={
        group: {name: Choice(group=group, name=name, options=None, plugin="demo")} for group, name in offered
    })  # fmt: skip
    assert catalog.unknown_choice("algorithm", "value_guided", ["arpo"]) == (
        "algorithm: no 'value_guided'. Did you mean branch_policy=value_guided? Available: arpo"
    )
    assert catalog.unknown_choice("algorithm", "python", ["arpo"]) == (
        "algorithm: no 'python'. Did you mean tools=[python]? Available: arpo"
    )


def test_a_tracker_that_is_unknown_missing_or_leads_nowhere_is_told_with_the_mistakes_in_keys(problems: Problems):
    *others, unknown = problems(MODEL, "train.stepps=3", "trackers=['???','${nope}',wandbb]")
    assert others == [
        *problems(MODEL, "train.stepps=3"),
        "trackers[0]: missing; set it, as in trackers[0]=…",
        "trackers[1]: Interpolation key 'nope' not found (in ${nope})",
    ]
    assert unknown.startswith("trackers: no tracker 'wandbb'. ")
