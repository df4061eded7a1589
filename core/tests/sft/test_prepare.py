from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Malformed, RolloutStepConfig
from ramet.errors import ConfigError, ConfigErrors
from ramet.models.encoder import Encoder
from ramet.rollout.config import FunctionConfig, TagsConfig
from ramet.rollout.steps.tags import Tags
from ramet.sft.prepare import RowCounts, prepare

TRACE = "<think>6*7</think><answer>42</answer>"
ANSWER = {"role": "assistant", "content": "42"}


def row(reply: str = TRACE) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": "6*7?"}, {"from": "gpt", "value": reply}]}


def resolved(config: Config) -> Resolved:
    return Resolved(job="sft", config=config, text="", overrides=[], set_by_user=frozenset())


def configured(model: Path, folder: Path, *rows: dict[str, Any]) -> Resolved:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    config = Config(rollout_step=RolloutStepConfig(params=TagsConfig()))
    config.model.path = str(model)
    config.sft.data = [str(file)]
    return resolved(config)


def test_rows_become_examples_with_the_steps_system_prompt(tiny_model: Path, tmp_path: Path) -> None:
    prepared = prepare(configured(tiny_model, tmp_path, row(), row()))
    text = prepared.tokenizer.decode(prepared.examples[0].token_ids)
    assert "Solve the task step by step." in text
    assert text.endswith(TRACE + prepared.tokenizer.eos_token)
    assert prepared.counts == RowCounts(trained=2, too_long=0, malformed=0, unread=0)
    assert len(prepared.examples) == 2
    learned = prepared.tokenizer.encode(TRACE, add_special_tokens=False)
    assert prepared.trained_tokens == 2 * (len(learned) + 1)


def test_rows_over_the_token_limit_are_left_out_and_counted(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, row(), row("x" * 3000), row("y" * 4000))
    config.config.sft.max_tokens = 2000
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    assert (prepared.counts.trained, prepared.counts.too_long) == (1, 2)
    file = config.config.sft.data[0]
    assert caplog.messages == [
        f"left out 2 of 3 rows longer than sft.max_tokens=2000 ({file}, rows 2, 3); longest: 4158"
    ]


def test_nothing_left_under_the_token_limit_is_an_error(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.sft.max_tokens = 20
    with pytest.raises(ConfigError, match=r"all 1 rows are longer than sft.max_tokens=20; longest: \d+"):
        prepare(config)


def test_results_of_tools_that_are_not_configured_are_reported(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = "<python>6*7</python> <result>\n42\n</result><answer>42</answer>"
    with caplog.at_level(logging.WARNING):
        prepared = prepare(configured(tiny_model, tmp_path, row(), row(trace)))
    [warning] = caplog.messages
    assert prepared.counts.unread == 1 and f"<python> in 1 ({tmp_path}/train.jsonl, row 2)" in warning


def test_mask_tags_mask_results_of_tools_that_are_not_installed(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = "<think>t</think><search>q</search> <result>\nA page.\n</result><answer>42</answer>"
    config = configured(tiny_model, tmp_path, row(trace))
    config.config.sft.mask_tags = ["search", "serach"]
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    (example,) = prepared.examples
    encoder = Encoder(prepared.tokenizer)
    learned = [i for i, on in zip(example.token_ids, example.trained, strict=True) if on]
    assert encoder.decode(learned) == "<think>t</think><search>q</search><answer>42</answer><|end|>"
    masked = [i for i, on in zip(example.token_ids, example.trained, strict=True) if not on]
    step = Tags(TagsConfig())
    inserted = [i for part in step.result("A page.") for i in encoder.insert(part)]
    assert masked[-len(inserted) :] == inserted, "the ids that a rollout inserts"
    assert prepared.counts.unread == 0
    assert caplog.messages == ["sft.mask_tags: no trace has a result after </serach>"]


def test_mask_tags_are_names_and_not_tags(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.sft.mask_tags = ["<search>", "python", "a b"]
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    assert caught.value.problems == [
        "sft.mask_tags: '<search>', 'a b': no names of tags; write them without brackets, as in "
        "sft.mask_tags=[search,python]"
    ]


MALFORMED = [
    row("<think>a</think><python>6*7</python> <result>\n42\n<answer>42</answer>"),
    row("<think>a</think><answer>42"),
    row(),
    {"conversations": []},
    row("<think>b</think><python>7*7</python> <result>\n49\n<answer>49</answer>"),
]


def test_malformed_rows_are_listed_by_reason_and_refused(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    with pytest.raises(ConfigErrors) as caught:
        prepare(configured(tiny_model, tmp_path, *MALFORMED))
    assert caught.value.problems == [
        f"{file}, rows 1, 5: <result> is not closed",
        f"{file}, row 2: <answer> is not closed",
        f"{file}, row 4: 'conversations' is empty",
        "sft.data: 4 of 5 rows are malformed; fix them, or set sft.malformed=skip to leave them out, or "
        "sft.malformed=keep to train on those that can be read as they are",
    ]


def test_malformed_rows_can_be_left_out_and_are_counted(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, *MALFORMED)
    config.config.sft.malformed = Malformed.SKIP
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    assert prepared.counts == RowCounts(trained=1, too_long=0, malformed=4, unread=0)
    file = tmp_path / "train.jsonl"
    assert [example.where for example in prepared.examples] == [f"{file}, row 3"]
    assert caplog.messages[0] == "4 of 5 rows are malformed and left out:"
    rows = [f"{file}, rows 1, 5", f"{file}, row 2", f"{file}, row 4"]
    assert [message.strip().partition(": ")[0] for message in caplog.messages[1:]] == rows


def test_malformed_traces_can_be_kept_and_rows_that_cannot_be_read_cannot(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, *MALFORMED)
    config.config.sft.malformed = Malformed.KEEP
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    row_4, total = caught.value.problems
    assert row_4.startswith(f"{tmp_path / 'train.jsonl'}, row 4: ")
    assert total.startswith("sft.data: 1 of 5 rows ") and "malformed=keep" not in total
    config = configured(tiny_model, tmp_path, *(one for one in MALFORMED if one["conversations"]))
    config.config.sft.malformed = Malformed.KEEP
    prepared = prepare(config)
    assert prepared.counts == RowCounts(trained=4, too_long=0, malformed=3, unread=0)


def test_rows_that_are_all_malformed_leave_nothing_to_train_on(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, MALFORMED[0], MALFORMED[1])
    config.config.sft.malformed = Malformed.SKIP
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    assert caught.value.problems == [
        f"sft.data: all 2 rows are malformed; the first is {tmp_path / 'train.jsonl'}, row 1: <result> is not closed"
    ]


def test_without_a_step_rows_are_not_called_malformed(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row(), MALFORMED[0])
    config.config.sft.malformed = Malformed.SKIP
    config.config.rollout_step.name = "tag"
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    [problem] = caught.value.problems
    assert problem.startswith("rollout_step: no rollout step named 'tag'. Did you mean 'tags'?")


def test_after_twenty_reasons_the_others_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"conversations": [{"from": "human", "value": n}]} for n in range(23)]
    with pytest.raises(ConfigErrors) as caught:
        prepare(configured(tiny_model, tmp_path, *rows))
    assert len(caught.value.problems) == 22
    assert caught.value.problems[20] == "and rows of 3 more reasons"


def test_everything_that_is_wrong_is_reported_together(tmp_path: Path) -> None:
    config = configured(tmp_path / "no_model", tmp_path, {"conversations": []}, row(), {"x": 1})
    config.config.rollout_step.name = "tag"
    config.config.trackers = ["jsonlines"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    config.config.run.out = str(tmp_path / "full")
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    text = str(caught.value)
    assert "model.path" in text
    assert "train.jsonl, row 1: 'conversations' is empty" in text and "train.jsonl, row 3: no key " in text
    assert "rollout_step: no rollout step " in text and "trackers: no tracker 'jsonlines'. " in text
    assert f"run.out: '{tmp_path / 'full'}' " in text


def test_the_model_that_is_trained_is_never_overwritten(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.run.out = str(tiny_model)
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    same, taken = caught.value.problems
    told = f"run.out: '{tiny_model}' is model.path={tiny_model}; nothing of yours is overwritten, so name another path"
    assert same == told and taken.startswith(f"run.out: '{tiny_model}' is there already")


def test_an_output_that_cannot_be_made_is_found_before_the_training(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.run.out = str(tmp_path / "train.jsonl" / "model")
    with pytest.raises(ConfigErrors, match=r"train\.jsonl' is not a folder that can be written to"):
        prepare(config)


def test_a_row_that_the_chat_template_refuses_is_named(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    config = configured(tiny_model, tmp_path, {**row(), "system": "be brief"})
    config.config.model.chat_template = str(template)
    with pytest.raises(ConfigError, match=r"train\.jsonl, row 1: model\.chat_template: .*no system"):
        prepare(config)


def test_rows_over_the_token_limit_are_cut_if_asked(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, row(), row("x" * 3000), {**row(), "system": "s" * 3000})
    config.config.sft.max_tokens, config.config.sft.truncate = 2000, True
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    counts = prepared.counts
    assert (counts.trained, counts.cut, counts.too_long) == (2, 1, 1)  # of the third nothing would be trained
    assert [len(example) for example in prepared.examples][1] == 2000
    assert prepared.examples[1].trained[-1] == 1
    assert caplog.messages[0] == "cut 1 of 3 rows to sft.max_tokens=2000; longest: 3158"


def test_only_the_first_rows_of_each_entry_are_taken_if_asked(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, *(row(f"<answer>{n}</answer>") for n in range(9)))
    other = tmp_path / "other.jsonl"
    other.write_text(Path(config.config.sft.data[0]).read_text())
    config.config.sft.data.append(str(other))
    config.config.sft.valid = [str(other)]
    config.config.sft.max_samples = 2
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    places = [[example.where for example in part] for part in (prepared.examples, prepared.valid)]
    rows = [f"{tmp_path}/{file}.jsonl, row {n}" for file in ("train", "other") for n in (1, 2)]
    assert places == [rows, rows[2:]]
    assert caplog.messages == ["2 of 2 rows of sft.valid are trained on, too: leave them out of one"]


def test_a_share_is_drawn_by_the_seed_and_never_trained(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, *(row(f"<answer>{n}</answer>") for n in range(20)))
    config.config.sft.valid_share = 0.25
    first, second = prepare(config), prepare(config)
    places = [{example.where for example in part} for part in (first.examples, first.valid)]
    assert [len(part) for part in places] == [15, 5] and not places[0] & places[1]
    assert (first.examples, first.valid) == (second.examples, second.valid)
    assert (first.counts.trained, first.counts.held_out) == (15, 5)
    config.config.run.seed += 1
    assert {example.where for example in prepare(config).valid} != places[1]
    config.config.sft.max_samples = 1
    with pytest.raises(ConfigError, match=r"sft\.valid_share=0\.25: leaves none of 1 different rows to train on"):
        prepare(config)


def test_copies_of_a_row_are_on_its_side(tiny_model: Path, tmp_path: Path) -> None:
    """Copies in one file, in two, and those that mixing makes."""
    config = configured(tiny_model, tmp_path, *(row(f"<answer>{n % 10}</answer>") for n in range(20)))
    small = tmp_path / "small.jsonl"
    small.write_text("".join(json.dumps(row(f"<answer>{n}</answer>")) + "\n" for n in range(8, 13)))
    config.config.sft.data.append(str(small))
    config.config.sft.mixing = {"strategy": "interleave_over"}
    config.config.sft.valid_share = 0.3
    prepared = prepare(config)
    texts = [[tuple(example.token_ids) for example in part] for part in (prepared.examples, prepared.valid)]
    assert not set(texts[0]) & set(texts[1])
    assert [len(set(part)) for part in texts] == [9, 4]
    assert sum(map(len, texts)) == 40


def test_held_out_files_are_read_as_the_others(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, row(), row())
    held_out = tmp_path / "held_out.jsonl"
    config.config.sft.valid = [str(held_out)]
    held_out.write_text(json.dumps(row("<answer>7</answer>")) + "\n")
    prepared = prepare(config)
    assert (prepared.counts.trained, prepared.counts.held_out) == (2, 1)
    record = prepared.valid_record(config)
    assert record is not None and record.files == [str(held_out)] and record.tasks == 1
    held_out.write_text(json.dumps({"conversations": []}) + "\n")
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    assert "held_out.jsonl, row 1: 'conversations' is empty" in str(caught.value)
    assert "sft.valid: 1 of 1 rows are malformed" in str(caught.value)
    held_out.write_text(json.dumps({"conversations": []}) + "\n" + json.dumps(row("<answer>7</answer>")) + "\n")
    config.config.sft.malformed = Malformed.SKIP
    with caplog.at_level(logging.WARNING):
        assert prepare(config).counts.held_out == 1
    assert "1 of 2 rows of sft.valid are malformed and left out:" in caplog.messages


def test_a_template_without_tools_is_refused_for_the_traces_of_an_agent(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft_agent.py").write_text("async def run(task, ctx): ...\n")
    config = configured(tiny_model, tmp_path, {"messages": [{"role": "user", "content": "6*7?"}, ANSWER]})
    params = FunctionConfig(function="sft_agent.py:run")
    config.config.rollout_step = RolloutStepConfig(name="function", params=params)
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    assert caught.value.problems == [
        "rollout_step=function (an agent, whose tools the policy sees only by the template): the chat template "
        "describes no tools; name the file of one that does, such as Qwen2.5's, as model.chat_template, or set "
        "rollout_step.tools_in_template=false for an agent without tools"
    ]
    config.config.rollout_step.tools_in_template = False
    assert prepare(config).counts.trained == 1


@pytest.mark.parametrize("lora_rank", [0, 8])
def test_a_mixture_of_experts_is_refused_with_all_else(tiny_model: Path, tmp_path: Path, lora_rank: int) -> None:
    config = configured(tiny_model, tmp_path, row())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 4}))
    config.config.model.path, config.config.sft.lora_rank = str(tmp_path), lora_rank
    with pytest.raises(ConfigErrors) as raised:
        prepare(config)
    assert "model.path: the model (qwen3_moe) is a mixture of experts, and those are not trained" in str(raised.value)
