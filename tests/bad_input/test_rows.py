"""Rows that are well formed, and that the model or its template cannot take all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigError
from ramet.train.prepare import prepare

STRICT = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{{ m.content }}{% endfor %}"""


def write(folder: Path, *prompts: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt, "answer": "x"}) + "\n" for prompt in prompts))
    return f"data.train=['{file}']"


def test_messages_that_the_chat_template_refuses_are_named_by_task_and_rule(train, tmp_path):
    (tmp_path / "strict.jinja").write_text(STRICT)
    fine, twice = [{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}] * 2
    overrides = [*train, write(tmp_path, fine, fine, twice), f"model.chat_template='{tmp_path}/strict.jinja'"]
    with pytest.raises(
        ConfigError, match=r"data: task 'rows/2': .*'user', 'user'.*roles must alternate user/assistant"
    ):
        prepare(compose(overrides, job="train"))


def test_an_enormous_prompt_is_left_out_and_its_length_told(train, tmp_path, caplog):
    found = prepare(compose([*train, write(tmp_path, "a", "b", "word " * 100_000)], job="train"))
    assert (len(found.tasks), found.too_long) == (2, 1)
    assert "1 of 3 tasks are longer than data.max_prompt_tokens=32 (longest: 500003 tokens)" in caplog.text


def test_when_every_prompt_is_too_long_the_counts_say_so(train, tmp_path):
    with pytest.raises(ConfigError, match=r"no task is left: 2 of 2 .*data\.max_prompt_tokens=2"):
        prepare(compose([*train, write(tmp_path, "a", "b"), "data.max_prompt_tokens=2"], job="train"))
