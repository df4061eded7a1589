"""Prompts of rollouts: where the tools are described, and tags in prompts that name no tool."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.components import prompts
from ramet.components.build import Components
from ramet.components.prompts import call_problems, describe_foreign_tags, task_prompts, warn_of_foreign_tags
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.compose import compose
from ramet.config.schema import Config, SystemPrompt
from ramet.data.tasks import load_tasks
from ramet.errors import ConfigErrors, PluginError
from ramet.models.check import check_model
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.tiny import make_tiny_model
from ramet.rollout.prompts import make_prompt
from ramet.testing.chat_templates import chat_encoder, chat_tokenizer
from ramet.testing.doubles import EchoTool, echo_tool
from ramet.train.dry_run import plan
from ramet.types import Message, Task, user_prompt

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "rl" / "train_10k.parquet"
SYSTEM = "Put a query between <search> and </search>; its result is within <result> </result>. <think> </think>"
TEMPLATE = (
    "{% if tools %}[{% for t in tools %}{{ t.function.name }}({{ t.function.parameters.required[0] }})"
    "{% endfor %}]{% endif %}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if not (enable_thinking | default(true)) %} <think></think>{% endif %}"
    "{% endif %}"
)


def misled() -> EchoTool:
    tool = echo_tool("misled")
    tool.schema = dataclasses.replace(tool.schema, description="Use it after <search>…</search>.")
    return tool


@pytest.fixture(autouse=True)
def tools(register: Callable[..., None]) -> None:
    register("tools", "calc", lambda: echo_tool("calc"))
    register("tools", "misled", misled)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "template.jinja").write_text(TEMPLATE)
    return make_tiny_model(folder / "tiny", hidden=32, layers=1, heads=2, intermediate=64)


def config(model: Path, *more: str) -> Config:
    named = [f"model.path={model}", "tools=[calc]", *more]
    return compose(named, job="data").config


def task(*tools: str, system: str = SYSTEM, name: str = "t") -> Task:
    messages = (Message(role="system", content=system), *user_prompt("q"))
    return Task(id=name, prompt=messages, tools=tools or None)


def check_prompts(config: Config) -> list[str]:
    return prompts.check_prompts(Components(config).step, config, tool_names(config))


def foreign_tags(config: Config, tasks: Sequence[Task]) -> dict[str, list[str]]:
    return prompts.foreign_tags(Components(config).step, config, tasks, tool_names(config))


def rendered(config: Config, task: Task) -> str:
    prompt = task_prompts(Components(config).step, config, tool_names(config))(task)
    encoder = build_encoder(config)
    return encoder.decode(encoder.prompt(prompt.messages, prompt.tools))


def test_the_template_describes_the_tools_and_the_steps_own_prompt_then_names_none(model: Path) -> None:
    template = f"model.chat_template={model.parent}/template.jinja"
    told = rendered(config(model, template), Task(id="t", prompt=user_prompt("q")))
    assert "<calc>" in told and not told.startswith("[")
    told = rendered(
        config(model, template, "rollout_step.tools_in_template=true"), Task(id="t", prompt=user_prompt("q"))
    )
    assert told.startswith("[calc(text)]system: Solve the task") and "<calc>" not in told
    told = rendered(config(model, template, "rollout_step.tools_in_template=true"), task(system="own"))
    assert told == "[calc(text)]system: own\nuser: q\nassistant:"


def test_a_template_that_reads_no_tools_cannot_describe_them(model: Path) -> None:
    assert check_prompts(config(model, "rollout_step.tools_in_template=true")) == [
        "rollout_step.tools_in_template=true: the chat template describes no tools; name the file of one that does, "
        "such as Qwen2.5's, as model.chat_template, or let the rollout step describe the tools"
    ]
    template = f"model.chat_template={model.parent}/template.jinja"
    assert check_prompts(config(model, template, "rollout_step.tools_in_template=true")) == []


def test_a_template_with_generation_tags_that_shows_no_tools_is_refused(model: Path) -> None:
    """As those that TRL trains with: what they read cannot be told from their text alone."""
    tags = "{% for m in messages %}{% generation %}{{ m['role'] }}: {{ m['content'] }}\n{% endgeneration %}{% endfor %}"
    (model.parent / "training.jinja").write_text(tags)
    hermes = config(model, f"model.chat_template={model.parent}/training.jinja", "rollout_step=hermes")
    (problem,) = check_prompts(hermes)
    assert problem.startswith("rollout_step=hermes: the chat template describes no tools; ")


def test_a_template_that_writes_the_date_is_reported(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    dated = "{{ day if day is defined else strftime_now('%d %b %Y') }}" + TEMPLATE
    (model.parent / "dated.jinja").write_text(dated)
    for more, reported in ((["model.chat_template_kwargs.day='26 Jul'"], False), ([], True)):
        caplog.clear()
        assert check_prompts(config(model, f"model.chat_template={model.parent}/dated.jinja", *more)) == []
        assert ("model.chat_template_kwargs" in caplog.text) == reported


def test_hermes_leaves_the_tools_to_the_template_and_refuses_one_that_does_not_take_them(model: Path) -> None:
    template, hermes = f"model.chat_template={model.parent}/template.jinja", "rollout_step=hermes"
    question = Task(id="t", prompt=user_prompt("q"))
    assert check_prompts(config(model, template, hermes)) == []
    assert rendered(config(model, template, hermes), question) == "[calc(text)]user: q\nassistant:"
    [problem] = check_prompts(config(model, hermes))
    assert problem.startswith("rollout_step=hermes: ") and "rollout_step.tools_in_template=false" in problem
    own = config(model, hermes, "rollout_step.tools_in_template=false")
    assert check_prompts(own) == []
    assert rendered(own, question).startswith("<|system|>You can use these tools, each described by a JSON schema:")
    deaf = TEMPLATE.replace("{{ m['role'] }}", "{{ raise_exception('no') if m.role == 'tool' else m.role }}")
    (model.parent / "deaf.jinja").write_text(deaf)
    [problem] = check_prompts(config(model, f"model.chat_template={model.parent}/deaf.jinja", hermes))
    assert problem.startswith("rollout_step=hermes: the chat template does not take messages of roles ['tool', 'tool']")


def test_the_steps_description_is_appended_to_the_tasks_own_system_message(model: Path) -> None:
    chosen = config(model, "rollout_step.system_prompt=append")
    (system, user) = task_prompts(Components(chosen).step, chosen, tool_names(chosen))(
        task(system="Be brief.")
    ).messages
    assert system.content.startswith("Be brief.\n\nSolve the task step by step.") and "<calc>" in system.content
    assert user == Message(role="user", content="q")


def test_variables_of_the_template_are_set_by_name(model: Path) -> None:
    template = f"model.chat_template={model.parent}/template.jinja"
    quiet = config(model, template, "model.chat_template_kwargs.enable_thinking=false")
    assert rendered(quiet, task(system="own")).endswith("assistant: <think></think>")
    whole = config(model, template, "model.chat_template_kwargs={enable_thinking: false}")
    assert whole.model == quiet.model
    assert check_model(quiet.model) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("thinking", "the chat template reads no such variable; it reads: enable_thinking"),
        ("tools", "is set by the run itself; leave the key out"),
        ("tokenize", "is set by the run itself; leave the key out"),
    ],
)
def test_a_variable_without_effect_is_refused(model: Path, name: str, problem: str) -> None:
    template = f"model.chat_template={model.parent}/template.jinja"
    wrong = config(model, template, f"model.chat_template_kwargs={{{name}: 1}}")
    assert check_model(wrong.model) == [f"model.chat_template_kwargs.{name}: {problem}"]


def test_a_system_prompt_of_ours_that_names_a_tool_that_does_not_exist_is_refused(model: Path) -> None:
    assert check_prompts(config(model)) == []
    assert check_prompts(config(model, "tools=[calc,misled]")) == [
        "rollout_step=tags: the system prompt that it makes of the tools' descriptions names tags of no configured "
        "tool: search; configured: calc, misled"
    ]


def test_tools_whose_names_cannot_be_tags_are_one_problem_among_the_others(model: Path) -> None:
    """A server of MCP names its tools as it likes."""
    chosen = config(model, "rollout_step.tools_in_template=true")
    found = ToolNames(schemas={"repo/read": echo_tool("repo/read").schema})
    template, names = prompts.check_prompts(Components(chosen).step, chosen, found)
    assert template.startswith("rollout_step.tools_in_template=true: ")
    assert names.startswith("tools: ") and "'repo/read'" in names


def test_tasks_that_name_tags_of_no_tool_are_counted_and_listed_in_one_warning(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fine = [task(system="<calc></calc>"), Task(id="u", prompt=user_prompt("q"))]
    tasks = [*(task(name=f"t/{i}") for i in range(4)), *fine]
    with caplog.at_level(logging.WARNING):
        chosen = config(model)
        warn_of_foreign_tags(Components(chosen).step, chosen, tasks, tool_names(chosen))
    assert [record.getMessage() for record in caplog.records] == [
        "prompts of tasks name tags of no tool that they may use: <search> in 4 (t/0, t/1, t/2, …); configured: calc. "
        "A call of one is answered with an error. Configure the tool, name tags of no tool in "
        "rollout_step.params.other_tags, or set rollout_step.system_prompt=always"
    ]
    always = config(model, "rollout_step.system_prompt=always")
    said = describe_foreign_tags({"search": ["t/0"]}, always, tool_names(always))
    assert "<search> in 1 (t/0); configured: calc." in said and "system_prompt=always" not in said
    assert foreign_tags(always, tasks) == {}
    assert foreign_tags(config(model, "rollout_step.params.other_tags=[search]"), tasks) == {}


def test_a_task_may_use_fewer_tools_than_its_prompt_names(model: Path) -> None:
    restricted = dataclasses.replace(task(system="<calc></calc>"), tools=())
    assert foreign_tags(config(model), [restricted]) == {"calc": ["t"]}


def training(model: Path, file: Path) -> list[str]:
    return [
        f"model.path={model}", f"data.train=[{file}]", "tools=[calc]", "rewards=[environment]",
        "train.tasks_per_step=1", "model.device=cpu", f"run.root={file.parent}", "data.max_prompt_tokens=500",
        "rollout.max_response_tokens=64", "rollout.max_concurrent=8", "engine=torch", "advantage=grpo",
        "policy_loss=ppo_clip",
    ]  # fmt: skip


def test_the_plan_prints_how_tasks_are_chosen(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"prompt": "q", "answer": "1", "level": i}) + "\n" for i in range(4)))
    chosen = [
        "train.resample_rounds=2",
        "data.weights.sums=5",
        "data.columns.difficulty=level",
        "data.difficulty.max=1",
    ]
    facts = plan(compose([*training(model, file), *chosen, "data.order=curriculum"], job="train")).facts
    assert facts["tasks"] == (
        f"2 of 4 from {file}; left out: 2 tasks outside the bounds of difficulty; sums 100% of draws, "
        "from easy to hard in every pass, groups without signal replaced up to 2 times"
    )


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs ../shared/data/rl")
def test_the_published_prompts_name_a_search_tool_that_a_run_with_python_alone_does_not_have(model: Path) -> None:
    tasks = load_tasks([str(PUBLISHED)], limit=5).tasks
    assert {tag: len(ids) for tag, ids in foreign_tags(config(model), tasks).items()} == {"search": 5, "python": 5}


def test_inspection_and_plan_print_the_warning_too(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    messages = [{"role": message.role, "content": message.content} for message in task().prompt]
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"prompt": messages, "answer": "1"}) + "\n")
    assert main(["data", "inspect", str(file), "tools=[calc]"]) == 0
    expected = "prompts of tasks name tags of no tool that they may use: <search> in 1 (tasks/0); configured: calc."
    assert f"  tags        {expected}" in capsys.readouterr().out
    overrides = training(model, file)
    with caplog.at_level(logging.WARNING):
        facts = plan(compose(overrides, job="train")).facts
    assert facts["tags"] == "no tool serves <search> (1 prompt): a call is answered with an error"
    assert [expected in record.getMessage() for record in caplog.records].count(True) == 1
    with pytest.raises(ConfigErrors, match=r"tags of no .*: search; configured: misled"):
        plan(compose([*overrides, "tools=[misled]"], job="train"))


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "system_prompt returned None; return a text"),
        (ZeroDivisionError("no"), "raised ZeroDivisionError in sys"),
    ],
)
def test_a_step_whose_system_prompt_is_no_text_is_named(returned: object, problem: str) -> None:
    class Mute:
        def system_prompt(self, tools: object) -> object:
            if isinstance(returned, Exception):
                raise returned
            return returned

    task = Task(id="a", prompt=user_prompt("?"))
    with pytest.raises(PluginError, match=problem):
        make_prompt(task, Mute(), (), SystemPrompt.AUTO)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["tags", "hermes"])
def test_an_instruction_comes_before_what_the_step_says(model: Path, step: str) -> None:
    chosen = [f"rollout_step={step}", "rollout_step.tools_in_template=false", "rollout_step.instruction=Be brief."]

    def system(rule: str, of: Task) -> str | None:
        own = config(model, *chosen, f"rollout_step.system_prompt={rule}")
        prompt = task_prompts(Components(own).step, own, tool_names(own))(of)
        return next((message.content for message in prompt.messages if message.role == "system"), None)

    plain, own = Task(id="t", prompt=user_prompt("q")), task(system="Own.")
    of_step = Components(config(model, *chosen)).step.system_prompt(tool_names(config(model)).allowed(None))
    assert system("auto", plain) == system("always", own) == f"Be brief.\n\n{of_step}"
    assert system("auto", own) == system("never", own) == "Own."
    assert system("append", own) == f"Own.\n\nBe brief.\n\n{of_step}"
    assert system("never", plain) == "Be brief."


def test_an_instruction_that_names_a_tool_that_does_not_exist_is_refused(model: Path) -> None:
    [problem] = check_prompts(config(model, "rollout_step.instruction='Ask <search>…</search> first.'"))
    assert problem.startswith("rollout_step.instruction: names tags of no configured tool: search; configured: calc")
    assert check_prompts(config(model, "rollout_step.instruction='Ask <calc>…</calc> first.'")) == []


XML_CALLS = (
    "{% for tool in tools or [] %}{{ tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}<function={{ call['function']['name'] }}></function>{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3.1"])
def test_an_agents_calls_have_a_form_that_the_gateway_reads(family: str) -> None:
    assert call_problems(chat_encoder(family)) == []


def test_a_template_whose_calls_the_gateway_does_not_read_is_refused_for_an_agent() -> None:
    [problem] = call_problems(Encoder(chat_tokenizer("qwen2.5"), XML_CALLS))
    assert problem.startswith(
        "model.chat_template: its tool calls have a form that the gateway does not read: '<function"
    )
