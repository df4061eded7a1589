"""Recipes: where they are found, whose file is read, what they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config import hydra_adapter
from ramet.config.compose import compose, layers
from ramet.config.needs import missing
from ramet.config.recipes import recipe, recipes, unread_recipes
from ramet.errors import ConfigError

MODEL = "model.path=m"
SHIPPED = "# @package _global_\n# What it does.\n# Needs: ramet no-such-package other[extra]\ntrain:\n  steps: 3\n"
Problems = Callable[..., list[str]]


@pytest.fixture
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What core ships, in a folder of its own."""
    folder = tmp_path_factory.mktemp("shipped")
    monkeypatch.setattr(hydra_adapter, "shipped_recipes", lambda: folder)
    write(folder / "experiment/demo.yaml", SHIPPED)
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_shipped_recipe_composes_in_any_folder(shipped: Path) -> None:
    assert compose([MODEL, "experiment=demo"], job="train").config.train.steps == 3


def test_a_recipe_says_what_it_does_and_what_it_lacks(shipped: Path) -> None:
    (found,) = recipes()
    assert (found.name, found.provider, found.path) == ("demo", "ramet", shipped / "experiment/demo.yaml")
    assert found.description == "What it does."
    assert found.needs == ("ramet", "no-such-package", "other[extra]")
    assert found.missing == ("no-such-package", "other[extra]")


BASE = """# @package _global_
# Needs: ramet
# Hardware: 8x80GiB
defaults:
  - override /algorithm: grpo
  - override /benchmarks: [arithmetic]
model:
  path: OWNER/NAME
data:
  train: [hf://datasets/OWNER/SET/a.parquet]
"""
MINE = """# @package _global_
# Hardware: 1x24GiB
# Reproduces: a table
defaults:
  - base
  - override /algorithm: dapo
  - _self_
data:
  train: [mine.jsonl]
"""


def test_what_a_recipe_begins_with_counts_too(shipped: Path) -> None:
    write(shipped / "experiment/base.yaml", BASE)
    write(shipped / "experiment/mine.yaml", MINE)
    base, mine = recipe("base"), recipe("mine")
    assert (base.job, base.model, base.data) == ("train", "OWNER/NAME", ("hf://datasets/OWNER/SET/a.parquet",))
    assert (mine.job, mine.model, mine.data) == ("train", "OWNER/NAME", ("mine.jsonl",))
    assert mine.choices == {"algorithm": "dapo", "benchmarks": ["arithmetic"]}
    assert (base.hardware, base.reproduces, mine.hardware, mine.reproduces) == ("8x80GiB", "", "1x24GiB", "a table")
    assert (base.description, mine.description) == ("", "")


def test_a_recipe_of_no_data_shows_its_benchmarks_and_what_is_the_users_shows_as_nothing(shipped: Path) -> None:
    write(shipped / "experiment/base.yaml", BASE.replace("data:\n  train: [hf://datasets/OWNER/SET/a.parquet]\n", ""))
    assert (recipe("base").job, recipe("base").data) == ("eval", ("arithmetic",))
    write(shipped / "experiment/base.yaml", "model:\n  path: ???\nsft:\n  data: ???\n")
    assert (recipe("base").job, recipe("base").model, recipe("base").data) == ("sft", "", ())


@pytest.mark.parametrize("text", ["a: [\n", "- one\n", "defaults:\n  - demo\nmodel: m\n", "defaults: [demo, base]\n"])
def test_a_recipe_that_does_not_compose_is_listed(shipped: Path, text: str) -> None:
    write(shipped / "experiment/base.yaml", text)
    assert (recipe("base").text, recipe("base").model, recipe("base").data) == (text, "", ())


def test_a_file_of_the_users_is_read_before_the_recipe_of_its_name(shipped: Path, workdir: Path) -> None:
    mine = write(workdir / "hydra_configs/experiment/demo.yaml", "# @package _global_\ntrain:\n  steps: 9\n")
    assert compose([MODEL, "experiment=demo"], job="train").config.train.steps == 9
    found = recipe("demo")
    assert (found.path, found.provider, found.hidden) == (mine, "working directory", ("ramet",))
    origins = layers([MODEL, "experiment=demo"], job="train").origins("train.steps")
    assert origins[-1].where == f"experiment/demo in file://{workdir}/hydra_configs"


def test_the_same_folder_twice_is_one(shipped: Path, workdir: Path) -> None:
    mine = write(workdir / "hydra_configs/experiment/mine.yaml", SHIPPED)
    assert [one.hidden for one in recipes(mine.parents[1])] == [(), ()]


def test_a_file_of_the_users_that_is_never_read_is_an_error(problems: Problems, shipped: Path, workdir: Path) -> None:
    first = write(workdir / "hydra_configs/experiment/mine.yaml", SHIPPED)
    second = write(workdir / "more/experiment/mine.yaml", SHIPPED)
    hidden = write(workdir / "hydra_configs/algorithm/grpo.yaml", "# @package _global_\n")
    preset = Path(hydra_adapter.__file__).parents[1] / "conf/algorithm/grpo.yaml"
    assert problems(MODEL, config_dir=workdir / "more") == [
        f"{hidden}: is never read, since {preset} (main) is algorithm/grpo.yaml too; rename it",
        f"{second}: is never read, since {first} (working directory) is experiment/mine.yaml too; rename it",
    ]


def test_what_a_recipe_lacks_is_named_where_it_fails(problems: Problems, shipped: Path) -> None:
    needy = SHIPPED.replace("train:\n", "defaults:\n  - override /branch_policy: absent\ntrain:\n")
    write(shipped / "experiment/demo.yaml", needy)
    [problem] = problems(MODEL, "experiment=demo")
    needs = "(asked for by experiment=demo, which needs no-such-package other[extra]: not installed)"
    assert problem.startswith("branch_policy: no 'absent'. ") and problem.endswith(needs)


def test_a_name_that_there_is_not_is_met_with_those_that_there_are(problems: Problems, shipped: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe("dem")
    assert str(caught.value) == "no recipe 'dem'. Did you mean 'demo'? Recipes: demo"
    assert problems(MODEL, "experiment=dem") == [
        "experiment: no 'dem'. Did you mean 'demo'? Available: demo (`ramet recipes` describes them; yours are in "
        "hydra_configs/ of the working directory, or in --config-dir)"
    ]


def test_one_that_cannot_be_read_is_named(shipped: Path) -> None:
    path = shipped / "experiment/demo.yaml"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError) as caught:
        recipe("demo")
    reason = "'utf-8' codec can't decode byte 0xff in position 2: invalid start byte"
    assert str(caught.value) == f"{path}: cannot be read: {reason}"
    assert [(one.name, one.unreadable) for one in recipes()] == [("demo", reason)]


def test_a_file_of_the_users_with_another_ending_is_an_error(problems: Problems, shipped: Path, workdir: Path) -> None:
    path = write(workdir / "hydra_configs/experiment/mine.yml", SHIPPED)
    told = f"{path}: is never read, since its name must end in .yaml; rename it"
    unread, unknown = problems(MODEL, "experiment=mine")
    assert unread == told and unknown.startswith("experiment: no 'mine'. ")
    assert unread_recipes() == [told]


def test_a_file_that_cannot_be_read_does_not_hide_the_others(shipped: Path) -> None:
    (shipped / "experiment/other.yaml").write_bytes(b"# \xff\n")
    assert recipe("demo").text == SHIPPED


def test_a_package_that_can_be_imported_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds for other hardware are distributions of other names; a mere folder is no package."""
    write(tmp_path / "built_elsewhere/__init__.py", "")
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert missing(["built-elsewhere", "only-a-folder"]) == ["only-a-folder"]


def test_a_value_of_a_recipe_that_is_of_the_wrong_kind_has_the_right_one_beside_it(
    problems: Problems, shipped: Path
) -> None:
    write(shipped / "experiment/demo.yaml", "# @package _global_\ndata:\n  train: tasks.jsonl\n")
    assert problems(MODEL, "experiment=demo") == [
        "In 'experiment/demo': ValidationError raised while composing config:; Invalid value assigned: AnyNode is not "
        "a ListConfig, list or tuple.; full_key: data.train; reference_type=DataConfig; object_type=DataConfig; "
        "data.train expects list[str], written as train: [A, B]"
    ]
