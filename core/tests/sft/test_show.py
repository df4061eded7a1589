"""`ramet sft --show N`, on a terminal and off it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from ramet.cli import main
from ramet.config.compose import compose
from ramet.sft.show import show

TRACE = "<think>count</think><search>6*7\x1b[31m</search> <result>\n42\n</result><answer>42</answer>"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def arguments(tiny_model: Path, tmp_path: Path) -> list[str]:
    file = tmp_path / "t.jsonl"
    user = {"role": "user", "content": "6*7?"}
    rows = [
        [user, {"role": "assistant", "content": TRACE}],
        [user, {"role": "assistant", "content": "<answer>1</answer>"}, user, {"role": "assistant", "content": "2"}],
    ]
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return [
        f"model.path={tiny_model}", f"sft.data=[{file}]", f"run.root={tmp_path / 'runs'}", "sft.mask_tags=[search]",
        "rollout_step.system_prompt=never",
    ]  # fmt: skip


def test_off_a_terminal_marks_tell_what_is_trained(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", *arguments, "--show", "2", "sft.max_tokens=60"]) == 0
    file = tmp_path / "t.jsonl"
    out = capsys.readouterr().out
    assert out == (
        "{+trained+}  masked: prompt and results, without marks\n"
        "\n"
        f"1. {file}, row 1: 36 tokens, 22 trained\n"
        "<|user|>6*7?<|end|><|assistant|>"
        "{+<think>count</think><search>6*7\\x1b[31m</search>+} <result>\n42\n</result>{+<answer>42</answer><|end|>+}\n"
        "\n"
        f"2. {file}, row 2, exchange 1: 11 tokens, 4 trained\n"
        "<|user|>6*7?<|end|><|assistant|>{+<answer>1</answer><|end|>+}\n"
    )
    assert not (tmp_path / "runs").exists(), "nothing is written"


def shown(arguments: list[str], count: int, **options: object) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, **options)  # type: ignore[arg-type]
    show(compose(arguments, job="sft"), count, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_terminal_colours_do(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = shown(arguments, 1, color_system="standard")
    assert out.startswith("\x1b[1;32mtrained\x1b[0m  \x1b[2mmasked: prompt and results\x1b[0m\n")
    assert "\x1b[1;32m<answer>42</answer><|end|>\x1b[0m" in out
    assert "\x1b[2m<|user|>6*7?<|end|><|assistant|>\x1b[0m\x1b[1;32m<think>count" in out
    assert "{+" not in out
    assert "6*7\\x1b[31m</search>" in COLOURS.sub("", out), "what the data hold steers no terminal"


def test_with_no_color_a_terminal_gets_marks(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = shown(arguments, 3, color_system="standard")
    assert "\x1b[32m" not in out and "{+2<|end|>+}" in out
    assert COLOURS.sub("", out).count("exchange") == 2


def test_weights_are_not_needed_and_long_sequences_are_marked(
    arguments: list[str], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    assert main(["sft", *arguments, f"model.path={folder}", "--show", "1", "sft.max_tokens=20"]) == 0
    assert "row 1: 36 tokens, 22 trained; left out, longer than sft.max_tokens=20\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["sft", "--show", "0"], "--show=0: "),
        (["sft", "--show", "1", "--dry-run"], "--show: sequences are shown only by `ramet sft`, without --dry-run, "),
        (["train", "--show", "1"], "--show: sequences are shown only by `ramet sft`, "),
    ],
)
def test_where_nothing_can_be_shown_it_says_why(
    arguments: list[str], given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = arguments if given[0] == "sft" else []
    assert main([*given, *more]) == 1
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_everything_that_is_wrong_is_reported_together(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text('{"messages": []}\n')
    assert main(["sft", *arguments, f"model.path={tmp_path / 'no'}", "--show", "1"]) == 1
    model, row, total = capsys.readouterr().err.splitlines()
    assert model == (
        f"error: model.path: '{tmp_path / 'no'}' is not a folder; the tokenizer's files must be on this machine"
    )
    assert row == f"error: {tmp_path / 't.jsonl'}, row 1: 'messages' is empty"
    assert total.startswith("error: sft.data: 1 of 1 rows ")


TEMPLATE = (
    "{% if tools %}<|system|>{{ tools[0].function.name }}<|end|>{% endif %}{% for m in messages %}"
    "{{ '<|user|>=' if m.role == 'tool' else '<|' + m.role + '|>' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_sets_of_a_dataset_info_show_what_is_trained_of_calls_replies_and_history(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"name": "weather", "arguments": {"city": "Paris"}}
    turns = [("human", "Paris?"), ("function_call", json.dumps(call)), ("observation", "15"), ("gpt", "Mild.")]
    calls = {"conversations": [{"from": role, "value": text} for role, text in turns], "tools": json.dumps([call])}
    chat = {"instruction": "1+1?", "output": "2", "history": [["hi", "ho"]]}
    columns = {"messages": "conversations", "tools": "tools"}
    listed = {
        "calls": {"file_name": "calls.json", "formatting": "sharegpt", "columns": columns},
        "chat": {"file_name": "chat.json",
                 "columns": {"prompt": "instruction", "response": "output", "history": "history"}},
    }  # fmt: skip
    for name, content in (("calls.json", [calls]), ("chat.json", [chat]), ("dataset_info.json", listed)):
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    keys = [
        f"model.path={tiny_model}", f"model.chat_template={tmp_path}/template.jinja", "rollout_step=hermes", "tools=[]",
        f"sft.data=[{tmp_path}/dataset_info.json:calls,{tmp_path}/dataset_info.json:chat]",
    ]  # fmt: skip
    assert main(["sft", *keys, "--show", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()[3::3]
    assert shown == [
        "<|system|>weather<|end|><|user|>Paris?<|end|><|assistant|>"
        f"{{+<tool_call>{json.dumps(call)}</tool_call><|end|>+}}<|user|>=15<|end|><|assistant|>{{+Mild.<|end|>+}}",
        "<|user|>hi<|end|><|assistant|>{+ho<|end|>+}",
        "<|user|>hi<|end|><|assistant|>ho<|end|><|user|>1+1?<|end|><|assistant|>{+2<|end|>+}",
    ]
