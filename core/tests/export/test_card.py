"""What a model card says, and that nothing in it is misread or of this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.config.schema import ModelConfig
from ramet.export.card import write_card
from ramet.runs.manifest import DataRecord, Manifest, write_manifest

COMMIT = "c" * 40
PROMPT = {
    "messages": [{"role": "system", "content": "Write ```python blocks."}],
    "tools": [],
    "stop": ["```", "</a>\n"],
    "sampling": {"temperature": 0.7},
}


def make_run(folder: Path, model: str, **facts: Any) -> Path:
    folder.mkdir()
    described = {"path": model, "chat_template_kwargs": {"enable_thinking": False}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": described}))
    manifest = Manifest(job="train", seed=1, deterministic=False, resume_level="A", git=None, versions={}, plugins=[])
    write_manifest(folder / "manifest.json", dataclasses.replace(manifest, **facts))
    return folder


def card_of(run: Path, base: Path, folder: Path, *, adapter: bool = False) -> tuple[dict[str, Any], str]:
    """The facts at its beginning, and the text."""
    folder.mkdir()
    write_card(folder, folder.name, base=ModelConfig(path=str(base)), run=run, step=3, adapter=adapter)
    text = (folder / "README.md").read_text()
    return yaml.safe_load(text.split("---\n")[1]), text


@pytest.mark.parametrize(
    ("licence", "facts", "terms"),
    [
        ("license: [mit, apache-2.0]", {"license": ["mit", "apache-2.0"]}, "mit, apache-2.0"),
        ('license: "no"', {"license": "no"}, "no"),
        ("license: {a: b}", {}, "not known here; see where it is from"),
        (
            "license: other\nlicense_name: qwen\nlicense_link: LICENSE",
            {
                "license": "other",
                "license_name": "qwen",
                "license_link": f"https://huggingface.co/me/base/blob/{COMMIT}/LICENSE",
            },
            f"qwen (https://huggingface.co/me/base/blob/{COMMIT}/LICENSE)",
        ),
        (": [", {}, "not known here; see where it is from"),
    ],
)
def test_model_licence_and_data_are_those_of_the_first_run(
    tmp_path: Path, licence: str, facts: dict[str, Any], terms: str
) -> None:
    base = tmp_path / f"hub/models--me--base/snapshots/{COMMIT}"
    base.mkdir(parents=True)
    (base / "README.md").write_text(f"---\n{licence}\n---\n# base\n")
    traces = f"hf://datasets/me/traces@{COMMIT}/a.jsonl"
    sft = make_run(
        tmp_path / "sft", str(base), job="sft",
        data={"train": DataRecord(files=[traces], fingerprint="f", tasks=7)},
    )  # fmt: skip
    (sft / "model").mkdir()
    data = {"train": DataRecord(files=[str(tmp_path / "tasks.jsonl")], fingerprint="f", tasks=5, too_long=1)}
    run = make_run(tmp_path / "rl", str(sft / "model"), data=data)
    header, text = card_of(run, sft / "model", tmp_path / "out")
    assert {key: header[key] for key in header if key.startswith("license")} == facts
    assert (header["base_model"], header["datasets"]) == ("me/base", ["me/traces"])
    assert f"Trained from `me/base`, commit `{COMMIT}`, with Ramet by `ramet sft`, before the run below." in text
    assert f"* `ramet sft`, train: 7 rows of `{traces}`\n* `ramet train`, train: 4 tasks of `tasks.jsonl`" in text
    assert f"That of the base model: {terms}." in text
    assert str(tmp_path) not in text
    header, text = card_of(run, sft / "model", tmp_path / "adapter", adapter=True)
    assert "base_model" not in header and "belongs to what `ramet sft` made of it" in text


def test_a_folder_of_this_machine_has_no_name_of_the_hub_whatever_its_card_says(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("---\nbase_model: me/base\nlicense: mit\n---\n")
    header, text = card_of(make_run(tmp_path / "rl", str(tmp_path / "mine")), tmp_path / "mine", tmp_path / "out")
    assert "base_model" not in header and header["license"] == "mit"
    assert "Trained from the model `mine` (its card names `me/base` as its own base) with Ramet." in text


def test_texts_are_fenced_and_paths_addresses_and_secrets_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "rl", "base", prompt=PROMPT)
    kept = ["algorithm=grpo", "train.steps=3", "rollout_step.answer=a/b", "tools.x.params.text='${oc.env:NAME}'"]
    left_out = [
        "run.name=x", "model.path=base", "wandb.project=x",
        "+data.train=[a.jsonl]", "sft.data=a.jsonl", "x.file=/home/me/x", "x.y=~/a",
        "x.files=[a,/home/me]", "x.z='../up'", "engine.params.urls=[http://10.0.0.1:8000/v1]", "x.api_key=***",
        "x.map={a:/home}", "tools.search.params.corpus=runs/x/corpus.sqlite",
    ]  # fmt: skip
    (run / "overrides.txt").write_text("\n".join([*kept, *left_out]))
    _, text = card_of(run, tmp_path / "base", tmp_path / "out")
    assert "\n\n```\n" + "\n".join(kept) + "\n```\n" in text
    assert "\n````\nWrite ```python blocks.\n````\n" in text
    assert "* stop strings: ```` ``` ````, `</a>\\n`\n" in text
    code = text.split("````python\n")[1].split("\n````")[0]
    compile(code, "card", "exec")
    assert "temperature=0.7, top_p=1.0, top_k=0, repetition_penalty=1.0" in code
    assert "stop_strings=['```', '</a>\\n']" in code and 'return_tensors="pt", enable_thinking=False)' in code
    assert "\n* variables of the chat template: `enable_thinking=False`\n" in text
    plain = make_run(tmp_path / "plain", "base", prompt=PROMPT | {"messages": []})
    assert "\nThe model was trained without a system prompt.\n" in card_of(plain, tmp_path / "base", tmp_path / "b")[1]
