"""Models and data by their names on the hub: fetched, recorded, refused. The hub is one on the loopback."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import Ended
from tests.e2e.hub import TOKEN, Hub, serving

from ramet.models.tiny import make_tiny_model

TRACES = [
    {
        "messages": [
            {"role": "user", "content": f"{i} + 1?"},
            {"role": "assistant", "content": f"<answer>{i + 1}</answer>"},
        ]
    }
    for i in range(4)
]
ASK = """
import sys
from ramet.errors import RametError
from ramet import hub
from ramet.runs.hub_inputs import local_data
for text in sys.argv[1:]:
    try:
        name = None if "datasets/" in text or ":" in text.removeprefix("hf://") else hub.model_name(text)
        print(local_data([text])[0] if name is None else hub.fetch_model(name).path)
    except RametError as error:
        print(f"{type(error).__name__}: {error}")
"""


class Machine:
    """Runs commands as on a machine with an empty cache."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "RAMET_"))}
        self.environment = kept | {
            "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def python(self, *argv: str, **more: str) -> Ended:
        done = subprocess.run(
            [sys.executable, *argv], cwd=self.folder, env=self.environment | more, capture_output=True, text=True
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def ramet(self, *argv: str, **more: str) -> Ended:
        return self.python("-m", "ramet", *argv, **more)

    def ask(self, *names: str, **more: str) -> list[str]:
        """The path or the error of each name."""
        ended = self.python("-c", ASK, *names, **more)
        assert ended.code == 0, ended.err
        return ended.out.splitlines()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "model", hidden=32, layers=2)


@pytest.fixture
def hub(model: Path) -> Iterator[Hub]:
    with serving() as hub:
        hub.put_folder("models/me/tiny", model)
        lines = "".join(json.dumps(row) + "\n" for row in TRACES).encode()
        tasks = "".join(json.dumps({"prompt": f"{i} + 1?", "answer": str(i + 1)}) + "\n" for i in range(4)).encode()
        hub.put("datasets/me/sums", {"README.md": b"#", "data/traces.jsonl": lines, "data/tasks.jsonl": tasks})
        yield hub


@pytest.fixture
def machine(hub: Hub, tmp_path: Path) -> Machine:
    return Machine(hub, tmp_path)


def test_sft_and_a_plan_take_model_and_data_by_name_and_a_resumed_run_keeps_the_commit(
    hub: Hub, machine: Machine
) -> None:
    traces, listed = "hf://datasets/me/sums/data/traces.jsonl", "dataset_info.json:alpaca"
    rows = "".join(json.dumps({"q": f"{i} + 1?", "a": f"<answer>{i + 1}</answer>"}) + "\n" for i in range(4)).encode()
    alpaca = hub.put("datasets/me/alpaca", {"README.md": b"#", "train.jsonl": rows})
    entry = {"hf_hub_url": "me/alpaca", "columns": {"prompt": "q", "response": "a"}}
    (machine.folder / "dataset_info.json").write_text(json.dumps({"alpaca": entry}))
    reads = {traces: hub.repositories["datasets/me/sums"].main} | ({listed: alpaca} if find_spec("datasets") else {})
    keys = ["model.path=me/tiny", f"sft.data=[{','.join(reads)}]", "run.name=one", "tools=[]",
            "sft.max_tokens=512", "sft.epochs=1", "sft.sequences_per_step=8"]  # fmt: skip
    ended = machine.ramet("sft", *keys)
    assert ended.code == 0, ended.err
    run = machine.folder / "runs/one"
    model = hub.repositories["models/me/tiny"].main
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["hub"] == {"me/tiny": model} | reads and manifest["data"]["train"]["tasks"] == 4 * len(reads)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["path"] == f"hf://me/tiny@{model}"
    pinned = [f"hf://datasets/me/sums@{reads[traces]}/data/traces.jsonl", f"{listed}@{alpaca}"]
    assert config["sft"]["data"] == pinned[: len(reads)]
    moved = hub.put("models/me/tiny", hub.repositories["models/me/tiny"].commits[model] | {"README.md": b"new"})
    ended = machine.ramet("sft", *keys)
    assert ended.code == 0, ended.err
    assert "this run is finished" in ended.err
    assert yaml.safe_load((run / "config.yaml").read_text()) == config
    ended = machine.ramet("sft", "--dry-run", *keys, "model.path=me/tiny@main")
    changed = f"model.path was hf://me/tiny@{model}, is hf://me/tiny@{moved}; resuming would mix two runs"
    assert ended.errors[0].startswith(changed), ended.err


def test_a_local_path_wins(hub: Hub, machine: Machine) -> None:
    (machine.folder / "me").mkdir()
    (machine.folder / "me/tiny").mkdir()
    (machine.folder / "me/sums:train").write_text("")
    found = machine.ask("me/tiny", "me/other", "me/sums:train", "hf://me/tiny")
    assert found[:3] == ["me/tiny", "me/other", "me/sums:train"]  # what is looked for in a folder that is there
    assert found[3].endswith(f"snapshots/{hub.repositories['models/me/tiny'].main}")
    assert not any("other" in request for request in hub.requests)


def test_weights_are_safetensors_and_files_are_fetched_once(hub: Hub, machine: Machine, model: Path) -> None:
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    hub.put(
        "models/me/tiny",
        files | {"pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x", "consolidated.safetensors": b"x"},
    )
    hub.put("models/me/pickled", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    first, pickled = machine.ask("me/tiny", "me/pickled")
    assert {path.name for path in Path(first).iterdir()} == {*files}
    assert pickled == (
        "ConfigError: me/pickled: has no *.safetensors, and loading other formats may run code; if you "
        "trust it, fetch it with `hf download me/pickled --local-dir FOLDER` and name that folder"
    )
    hub.requests.clear()
    assert machine.ask("me/tiny") == [first]
    assert not [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]
    assert machine.ask("me/tiny", HF_HUB_OFFLINE="1") == [first]


def test_without_a_terminal_progress_is_logged(hub: Hub, machine: Machine) -> None:
    code = """
import logging
from ramet import hub
logging.basicConfig(level=logging.INFO)
hub.EVERY_S = 0.0
hub.fetch_model(hub.model_name("me/tiny"))
"""
    ended = machine.python("-c", code)
    assert re.search(r"fetched \d+\.\d of \d+\.\d MB so far", ended.err) and "commit " in ended.err


def test_a_pattern_means_the_files_that_it_means_here(hub: Hub, machine: Machine) -> None:
    hub.put("datasets/me/many", {"a.jsonl": b"{}", "x/b.jsonl": b"{}", "x/y/c.jsonl": b"{}", "x/d.txt": b""})
    names = ["hf://datasets/me/many/**/*.jsonl", "hf://datasets/me/many/x/*.jsonl"]
    everywhere, here = machine.ask(*names, HF_HOME=str(machine.folder / "h[f]"))  # brackets are no pattern there
    assert {Path(path).name for path in glob.glob(everywhere, recursive=True)} == {"a.jsonl", "b.jsonl", "c.jsonl"}
    assert [Path(path).name for path in glob.glob(here, recursive=True)] == ["b.jsonl"]


def test_what_cannot_be_had_is_named_with_what_to_do(hub: Hub, machine: Machine) -> None:
    hub.put("models/me/gated", {"config.json": b"{}", "model.safetensors": b"x"}, gated=True)
    hub.put("models/me/private", {"config.json": b"{}", "model.safetensors": b"x"}, private=True)
    gated, private, missing, revision, file, bare, wrong = machine.ask(
        "me/gated", "me/private", "me/nothing", "me/tiny@v9", "hf://datasets/me/sums/train.parquet",
        "hf://datasets/me/sums", "hf://spaces/me/x",
    )  # fmt: skip
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    assert gated == f"ConfigError: me/gated: is gated: ask for access at {hub.url}/me/gated, and {log_in}"
    shows = "it is not here, and the hub shows no such model to you; look for its name at"
    assert private == f"ConfigError: me/private: {shows} {hub.url}/me/private, and if it is private, {log_in}"
    assert missing == f"ConfigError: me/nothing: {shows} {hub.url}/me/nothing, and if it is private, {log_in}"
    assert revision == f"ConfigError: me/tiny@v9: me/tiny has no revision 'v9'; see {hub.url}/me/tiny/commits"
    assert file == (
        "ConfigError: hf://datasets/me/sums/train.parquet: no such file in me/sums; there: README.md, "
        "data/traces.jsonl, data/tasks.jsonl"
    )
    assert "names no file of a data set; give hf://datasets/OWNER/NAME/FILE" in bare
    assert wrong.startswith("ConfigError: 'hf://spaces/me/x' names no")
    assert machine.ask("me/gated", "me/private", HF_TOKEN=TOKEN)[0].endswith(hub.repositories["models/me/gated"].main)
    assert machine.ask("me/tiny", HF_TOKEN="hf_old") == [
        f"ConfigError: me/tiny: the hub wants a valid token of yours; {log_in}"
    ]


def test_offline_and_half_downloaded_are_two_things(hub: Hub, machine: Machine) -> None:
    offline = machine.ask("me/tiny", HF_HUB_OFFLINE="1")
    assert offline == ["ConfigError: me/tiny: is not on this machine; unset HF_HUB_OFFLINE to fetch it"]
    assert machine.ask("me/tiny", HF_ENDPOINT="http://127.0.0.1:9")[0].startswith(
        "ConfigError: me/tiny: is not on this machine; http://127.0.0.1:9 cannot be reached"
    )
    hub.down = True
    assert machine.ask("me/tiny")[0].startswith("InfraError: me/tiny: the hub answers 503")
    hub.down, hub.cut_at, hub.short = False, 20_000, "data/tasks.jsonl"
    names = ["me/tiny", "hf://datasets/me/sums/data/tasks.jsonl"]
    for name, broken in zip(names, machine.ask(*names), strict=True):
        assert broken.startswith(f"InfraError: {name}: the transfer broke off; start again to continue it")
    half = machine.ask("me/tiny", HF_HUB_OFFLINE="1")
    assert half == [
        "ConfigError: me/tiny: only a part of it is on this machine; unset HF_HUB_OFFLINE to fetch the rest"
    ]
    hub.cut_at = None
    assert machine.ask("me/tiny")[0].endswith(hub.repositories["models/me/tiny"].main)
    cache = machine.folder / "hf/hub/models--me--tiny"  # as another program leaves it that needed no weights
    shutil.rmtree(cache / "trees")
    next(cache.glob("snapshots/*/model.safetensors")).unlink()
    assert machine.ask("me/tiny", HF_HUB_OFFLINE="1") == half


def test_another_machine_finds_its_own_copy(hub: Hub, machine: Machine) -> None:
    commit = hub.repositories["models/me/tiny"].main
    elsewhere = f"/home/other/hf/hub/models--me--tiny/snapshots/{commit}"
    here = str(machine.folder / "hf/hub/models--me--tiny/snapshots" / commit)
    code = """
import sys
from ramet.hub import whole_copy
for weights in (0, 1):
    print(*(whole_copy(path, weights=bool(weights)) for path in sys.argv[1:]))
"""
    assert machine.python("-c", code, elsewhere, "a/b").out.splitlines() == [f"{here} a/b"] * 2
    assert (Path(here) / "model.safetensors").is_file()
    hub.requests.clear()
    assert machine.python("-c", code, elsewhere, here).out.splitlines() == [f"{here} {here}"] * 2
    (Path(here) / "model.safetensors").unlink()
    assert machine.python("-c", code, here).out.splitlines() == [here] * 2
    assert (Path(here) / "model.safetensors").is_file()


def test_a_run_by_names_is_exported_with_a_card_and_pushed(hub: Hub, machine: Machine) -> None:
    files = hub.repositories["models/me/tiny"].commits[hub.repositories["models/me/tiny"].main]
    base = hub.put("models/me/tiny", files | {"README.md": b"---\nlicense: apache-2.0\n---\n# tiny\n"})
    ended = machine.ramet(
        "train", "model.path=me/tiny", "data.train=hf://datasets/me/sums/data/tasks.jsonl", "algorithm=grpo",
        "tools=[]", "engine=torch", "rewards=[format]", "run.name=rl", "rollout.max_response_tokens=8",
        "rollout.group_size=2", "train.tasks_per_step=2", "train.minibatches=1", "train.steps=1",
        "train.resample_rounds=0", "data.max_prompt_tokens=512",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    hub.put("models/me/tiny", files)  # the export takes the commit that the run began with
    typed = machine.ramet("export", "r1", "out", "--push", "me/trained", HF_TOKEN=TOKEN)
    assert typed.errors[0].startswith("no run 'r1'") and "models/me/trained" not in hub.repositories
    refused = machine.ramet("export", "rl", "out", "--push", "others/x", HF_TOKEN=TOKEN)
    assert refused.errors == [
        "--push: others/x: your token has no right to do this; give one that has it, or ask the owner: "
        f"{hub.url}/others/x"
    ]
    assert not (machine.folder / "out").exists()
    shutil.rmtree(machine.folder / "hf")  # as on another machine: of a model that is exported whole it needs no weights
    ended = machine.ramet("export", "rl", "out", "--push", "me/trained", HF_TOKEN=TOKEN)
    assert ended.code == 0, ended.err
    pushed = hub.repositories["models/me/trained"]
    assert pushed.private and f"pushed to {hub.url}/me/trained/commit/{pushed.main}" in ended.out
    folder = machine.folder / "out"
    assert pushed.commits[pushed.main] == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not [
        name for name, content in pushed.commits[pushed.main].items() if str(machine.folder).encode() in content
    ]
    assert not any(machine.folder.glob("hf/**/model.safetensors"))
    card = (folder / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    assert (header["base_model"], header["license"], header["datasets"]) == ("me/tiny", "apache-2.0", ["me/sums"])
    assert f"`me/tiny`, commit `{base}`" in card and "algorithm=grpo" in card and str(machine.folder) not in card
    prompt = json.loads((machine.folder / "runs/rl/manifest.json").read_text())["prompt"]
    assert prompt["messages"][0]["content"] in card and "`</answer>`" in card and "temperature 1" in card
    code = card.split("```python\n")[1].split("\n```")[0].replace("max_new_tokens=1024", "max_new_tokens=4")
    ended = machine.python("-c", code, HF_TOKEN=TOKEN)  # from the hub: its name is in the card
    assert ended.code == 0, ended.err
    assert any(machine.folder.glob("hf/hub/models--me--trained/snapshots/*/model.safetensors"))


def test_a_push_replaces_weights_and_needs_the_right_to_write(hub: Hub, machine: Machine) -> None:
    (machine.folder / "out").mkdir()
    (machine.folder / "out/model.safetensors").write_bytes(b"new")
    old = dict.fromkeys(
        ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "selection.json", "chat_template.jinja",
         "NOTES.md"), b"old",
    )  # fmt: skip
    hub.put("models/me/old", old)
    hub.put("models/others/x", old)
    new = {"model.safetensors", "NOTES.md"}
    code = """
import sys
from pathlib import Path
from ramet.errors import RametError
from ramet.cli.export import _push
from ramet.hub import make_repository
for id in sys.argv[1:]:
    try:
        make_repository(id)
        _push(Path("out"), id)
    except RametError as error:
        print(f"{type(error).__name__}: {error}")
"""
    hub.full = True
    [fault] = machine.python("-c", code, "me/old", HF_TOKEN=TOKEN).out.splitlines()
    said, _, upload = fault.partition("this uploads it: ")
    assert said.startswith("InfraError: --push: me/old: the hub answers 507") and "secret" not in said
    hub.full = False
    command = [str(Path(sys.executable).with_name("hf")), *shlex.split(upload)[1:]]
    subprocess.run(command, cwd=machine.folder, env=machine.environment | {"HF_TOKEN": TOKEN}, check=True)
    assert hub.repositories["models/me/old"].commits[hub.repositories["models/me/old"].main].keys() == new
    hub.put("models/me/old", old)
    ended = machine.python("-c", code, "me/old", "others/x", HF_TOKEN=TOKEN)
    assert ended.out.splitlines() == [
        "ConfigError: others/x: your token has no right to do this; give one that has it, or ask the owner: "
        f"{hub.url}/others/x"
    ], ended.err
    mine, theirs = hub.repositories["models/me/old"], hub.repositories["models/others/x"]
    assert mine.commits[mine.main] == {"model.safetensors": b"new", "NOTES.md": b"old"}
    assert theirs.commits[theirs.main] == old


def test_each_name_has_its_commit_and_what_the_environment_names_is_not_written(hub: Hub, machine: Machine) -> None:
    first = hub.repositories["models/me/tiny"].main
    files = hub.repositories["models/me/tiny"].commits[first]
    second = hub.put("models/me/tiny", files | {"README.md": b"new"})
    code = """
import json, sys
from ramet.config.compose import compose
from ramet.runs.hub_inputs import fetched
resolved = fetched(compose(sys.argv[2:], job=sys.argv[1]))
model = resolved.config.model
print(json.dumps([model.path, model.tokenizer, resolved.hub, resolved.text]))
"""
    both = [f"model.path=me/tiny@{first}", "model.tokenizer=me/tiny", "engine=torch"]
    ended = machine.python("-c", code, "play", *both)
    path, tokenizer, commits, _ = json.loads(ended.out)
    assert (path.rpartition("/")[2], tokenizer.rpartition("/")[2]) == (first, second)
    assert commits == {f"me/tiny@{first}": first, "me/tiny": second}
    ended = machine.python("-c", code, "play", "model.path=${oc.env:BASE}", "engine=torch", BASE="me/tiny")
    path, _, commits, text = json.loads(ended.out)
    assert path.endswith(second) and commits == {"model.path": second} and "me/tiny" not in text
    sets = {"A": "hf://datasets/me/sums/data/tasks.jsonl", "B": "hf://datasets/me/more/a.jsonl"}
    shas = [hub.repositories["datasets/me/sums"].main, hub.put("datasets/me/more", {"a.jsonl": b"{}"})]
    hub.repositories["models/me/tiny"].moving = True  # between two looks at it
    keys = ["model.path=me/tiny", "model.tokenizer=me/tiny", "data.train=[${oc.env:A},${oc.env:B}]"]
    path, tokenizer, commits, text = json.loads(machine.python("-c", code, "data", *keys, **sets).out)
    assert path == tokenizer and "datasets" not in text
    assert commits == {"me/tiny": Path(path).name, "data.train.0": shas[0], "data.train.1": shas[1]}


def test_a_job_fetches_no_data_that_it_does_not_read(hub: Hub, machine: Machine) -> None:
    code = """
import sys
from ramet.config.compose import compose
from ramet.runs.hub_inputs import fetched
print(fetched(compose(sys.argv[1:], job="eval")).config.data.train)
"""
    train = "hf://datasets/me/sums/data/tasks.jsonl"
    ended = machine.python(
        "-c", code, "model.path=me/tiny", f"data.train={train}", "benchmarks=[gsm8k]", "engine=torch"
    )
    assert ended.out.strip() == str([train]), ended.err
    assert not [request for request in hub.requests if "datasets" in request]


def test_a_split_is_read_by_datasets_once(hub: Hub, machine: Machine) -> None:
    pytest.importorskip("datasets", reason="needs the extra `hub`")
    rows = "".join(json.dumps({"prompt": f"{i}?", "answer": str(i)}) + "\n" for i in range(3)).encode()
    commit = hub.put("datasets/me/splits", {"README.md": b"#", "train.jsonl": rows, "test.jsonl": rows})
    [file] = machine.ask("me/splits:train")
    assert file == str(machine.folder / f"hf/assets/ramet/me--splits/{commit}--default/splits_train.parquet")
    moved = hub.put("datasets/me/splits", {"README.md": b"#", "train.jsonl": rows + rows})
    same, other = machine.ask("me/splits:train", f"me/splits@{moved}:train", HF_HUB_OFFLINE="1")
    assert same == file and "is not on this machine; unset HF_HUB_OFFLINE" in other  # not the rows that are here
    (machine.folder / "me/local").mkdir(parents=True)
    (machine.folder / "me/local/train.jsonl").write_bytes(rows)
    hub.put("datasets/me/local", {"README.md": b"#", "train.jsonl": rows})
    wrong, local = machine.ask("me/splits:other", "me/local:train")
    assert f"ConfigError: me/splits@{moved}:other: `datasets` cannot load it: Unknown split" in wrong
    assert local.startswith("ConfigError: me/local@") and "me/local is also a folder here" in local
    ended = machine.ramet("data", "inspect", "me/splits:train")
    assert ended.code == 0 and "6 rows" in ended.out, ended.out + ended.err
