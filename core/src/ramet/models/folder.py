"""Whether `model.path` is the folder of a model at all, found without importing what loads one."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ramet.config.schema import ModelConfig
from ramet.hub import MODEL


def check_folder(config: ModelConfig) -> list[str]:
    """Return the problems that end the check: it is not a folder, or it is the directory of a run."""
    folder = Path(config.path)
    if config.path == "???" or not folder.is_dir():
        problem = (
            f"model.path: {config.path!r} is not a folder; give a Hugging Face model folder, or OWNER/NAME of the hub"
        )
        return [problem + _hub(config) + _close(folder)]
    if _is_run(folder):
        return [f"model.path: {config.path!r} is the directory of a run; {_model_of(folder)}"]
    return []


def _is_run(folder: Path) -> bool:
    files = [(folder / name).is_file() for name in ("manifest.json", "config.yaml", "config.json")]
    return files == [True, True, False]


def _model_of(run: Path) -> str:
    if (run / "model/config.json").is_file():
        return f"its model is {str(run / 'model')!r}"
    if any((run / "checkpoints").glob("step_*")):
        return f"it has no model yet, and `ramet export {run} FOLDER` writes one of its newest checkpoint"
    return "no model is in it"


def _close(folder: Path) -> str:
    """The folder next to it that may be meant."""
    beside = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
    close_names = get_close_matches(folder.name, beside, n=1)
    return f". Did you mean {str(folder.parent / close_names[0])!r}?" if close_names else ""


def _hub(config: ModelConfig) -> str:
    """Say how to name a model of the hub whose owner is also a folder here: it was taken for a path."""
    return f" (hf://{config.path} is the one of the hub)" if MODEL.fullmatch(config.path) else ""
