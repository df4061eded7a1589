"""Models and data of the Hugging Face hub by name: fetched into the usual cache of this machine, or found there.

Models are pushed to it, too.

`huggingface_hub` does the work. It obeys `HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_HOME` and `HF_TOKEN`, and continues files
that were half downloaded. A commit is fetched once; a branch is looked up at every start.
"""

from __future__ import annotations

import glob
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramet.errors import ConfigError, InfraError, RametError
from ramet.io.atomic import open_atomic
from ramet.io.os_errors import os_error_text

logger = logging.getLogger(__name__)
SCHEME = "hf://"
SPLIT = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[^:]+))?:((?P<subset>[\w.-]+)/)?(?P<split>[\w.-]+)")
MODEL = re.compile(r"(?P<id>[\w-][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# In the cache of this machine or another: a model's folder or a file of a data set, and what `_split` wrote.
CACHED = re.compile(
    r"(^|/)(?P<kind>model|dataset)s--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/snapshots/(?P<commit>[0-9a-f]{40})"
    r"(/(?P<path>.+))?$"
)
CACHED_SPLIT = re.compile(
    r"/ramet/(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/(?P<commit>[0-9a-f]{40})--(?P<subset>[\w.-]+)"
    r"/(?P=name)_(?P<split>[\w.-]+)\.parquet$"
)
ALL_SUBSETS = "default"  # as `datasets` calls the one of a set without subsets
WEIGHTS = "*.safetensors"
SMALL = (
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.py",
    "README.md",
    "LICENSE*",
)  # in addition to weights
TWICE = ("consolidated*", "*/*.safetensors")  # weights in other forms
REPLACED = (  # by a push, or deleted: files of another model would be taken for a part of this one
    "*.safetensors", "*.bin", "*.index.json", "config.json", "adapter_config.json", "chat_template.jinja",
    "special_tokens_map.json", "added_tokens.json", "selection.json",
)  # fmt: skip
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
EVERY_S = 30.0  # between lines of progress without a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A model, a file or pattern of a data set, or a split of one."""

    kind: str  # model or dataset
    id: str  # OWNER/NAME
    revision: str | None = None  # branch, tag or commit; None: the main branch
    path: str = ""  # in it; may be a pattern
    subset: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        """Return the name as a configuration may have it."""
        id = self.id if self.revision is None else f"{self.id}@{self.revision}"
        if self.kind == "model":
            return id
        if self.split is not None:
            return f"{id}:{self.split if self.subset is None else f'{self.subset}/{self.split}'}"
        return f"{SCHEME}datasets/{id}/{self.path}"

    @property
    def uri(self) -> str:
        """The name as nothing here can be taken for it."""
        return f"{SCHEME}{self}" if self.kind == "model" else str(self)

    @property
    def page(self) -> str:
        return f"{_endpoint()}/{'datasets/' if self.kind == 'dataset' else ''}{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCopy:
    """The commit of a name when it was looked up, and its place on this machine."""

    name: HubName  # with the commit as its revision
    path: Path  # for a model its folder, otherwise a file or a pattern

    @property
    def commit(self) -> str:
        return self.name.revision or ""


def model_name(text: str) -> HubName | None:
    """Return the model of the hub that `text` names; None for a path, which wins: whatever is there, or in a folder
    that is there. `hf://OWNER/NAME` is always one of the hub. Raises `ConfigError` for one that cannot be read.
    """
    if text.startswith(SCHEME):
        name = _of_uri(text)
        if name.kind != "model" or name.path:
            raise ConfigError(
                f"{text!r} names no model of the hub; a model is hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
            )
        return name
    match = MODEL.fullmatch(text)
    if match is None or Path(text).exists() or Path(match["id"]).exists() or Path(match["id"]).parent.is_dir():
        return None
    return HubName(kind="model", id=match["id"], revision=match["revision"])


def data_name(text: str) -> HubName | None:
    """Return what `text` names of a data set of the hub; None for a path. Raises as `model_name`."""
    if text.startswith(SCHEME):
        name = _of_uri(text)
        if name.kind != "dataset" or not name.path:
            raise ConfigError(
                f"{text!r} names no file of a data set; give hf://datasets/OWNER/NAME/FILE, where FILE may be a "
                "pattern such as data/*.parquet, or OWNER/NAME:SPLIT"
            )
        return name
    match = SPLIT.fullmatch(text)
    if match is None or match["id"].endswith(".json") or Path(text).exists():  # DIR/dataset_info.json:NAME is a file's
        return None
    return HubName(kind="dataset", **match.groupdict())


def fetch_model(name: HubName, *, weights: bool = True) -> HubCopy:
    """Fetch the model's files, or find them in the cache. Weights are safetensors: other formats may contain code.

    Raises `ConfigError` and `InfraError` that say how to get it.
    """
    copy = _snapshot(name, _wanted(weights), ignored=TWICE)
    if weights and not any(copy.path.glob(WEIGHTS)):
        _files(name, copy.commit)  # raises if this copy is not complete
        raise ConfigError(
            f"{name}: has no {WEIGHTS}, and loading other formats may run code; if you trust it, fetch it "
            f"with `hf download {name.id} --local-dir FOLDER` and name that folder"
        )
    return copy


def fetch_data(name: HubName) -> HubCopy:
    """Fetch the files that the name means, or find them in the cache. Raises as `fetch_model`."""
    if name.split is not None:
        return _split(name)
    copy = _snapshot(name, [name.path, name.path.replace("**/", "")])  # `**/` means any folders, none too
    path = copy.path / name.path
    if not path.is_file():
        path = Path(glob.escape(str(copy.path))) / name.path
        if not glob.glob(str(path), recursive=True):
            files = _files(name, copy.commit)
            shown = [*files[:10], *(["…"] if len(files) > 10 else [])]
            raise ConfigError(f"{name}: no such file in {name.id}; there: {', '.join(shown) or 'nothing'}")
    return replace(copy, path=path)


def make_repository(id: str) -> None:
    """Make OWNER/NAME on the hub, private: its page makes it public. One that is there must be the user's to write to.

    Raises as `fetch_model`.
    """
    from huggingface_hub import HfApi, errors

    name = HubName(kind="model", id=id)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", id) is None:
        raise ConfigError(f"{id!r} names no repository of the hub; give OWNER/NAME")
    with _explained(name):
        try:
            HfApi().create_repo(id, private=True)
        except errors.HfHubHTTPError as refused:
            exists = refused.response.status_code == 409
            if not exists and refused.response.status_code != 403:  # it may be there, and others may not make one
                raise
            try:
                HfApi().auth_check(id, write=True)
            except errors.HfHubHTTPError as error:
                raise (error if exists else refused) from None


def push(folder: Path, id: str) -> str:
    """Upload the folder, and return the page of its commit. Files of a model that are there under other names are
    deleted: a loader might take those. Raises as `fetch_model`.
    """
    from huggingface_hub import HfApi

    name = HubName(kind="model", id=id)
    with _explained(name):
        commit = HfApi().upload_folder(
            repo_id=id, folder_path=folder, commit_message="ramet export", delete_patterns=list(REPLACED)
        )
    return f"{name.page}/commit/{commit.oid}"


def cached_name(path: Path | str) -> HubName | None:
    """Return what a path in a cache of the hub, here or elsewhere, is a copy of; None for other paths."""
    text = Path(path).as_posix()
    if (match := CACHED.search(text)) is not None:
        id = f"{match['owner']}/{match['name']}"
        if match["kind"] == "dataset" or match["path"] is None:
            return HubName(kind=match["kind"], id=id, revision=match["commit"], path=match["path"] or "")
    if (match := CACHED_SPLIT.search(text)) is not None:
        subset = None if match["subset"] == ALL_SUBSETS else match["subset"]
        id = f"{match['owner']}/{match['name']}"
        return HubName(kind="dataset", id=id, revision=match["commit"], subset=subset, split=match["split"])
    return None


def cached_folder(name: HubName) -> Path | None:
    """Return the model's folder in the cache of this machine; None: it is not there. No network is asked."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    file = try_to_load_from_cache(name.id, "config.json", revision=name.revision)
    return Path(file).parent if isinstance(file, str) else None


def whole_copy(path: str, *, weights: bool = True) -> str:
    """Return a model's folder in the cache of this machine for one of any cache: that one, if it has all files,
    otherwise a fetched one. Other paths stay as they are. Raises as `fetch_model`.
    """
    name = cached_name(path)
    if name is None or name.kind != "model" or _is_whole(Path(path), name, weights):
        return path
    return str(fetch_model(name, weights=weights).path)


def _is_whole(folder: Path, name: HubName, weights: bool) -> bool:
    """Look only at the folder, and at the list of files next to it, which the hub's client wrote."""
    if not folder.is_dir():
        return False
    from huggingface_hub import errors, snapshot_download

    try:
        snapshot_download(
            name.id, revision=name.revision, cache_dir=folder.absolute().parents[2], local_files_only=True,
            allow_patterns=_wanted(weights), ignore_patterns=list(TWICE),
        )  # fmt: skip
    except errors.LocalEntryNotFoundError:
        return False
    return not weights or any(any(folder.glob(pattern)) for pattern in (WEIGHTS, "*.bin"))


def _wanted(weights: bool) -> list[str]:
    return [*SMALL, *([WEIGHTS] if weights else [])]


def _of_uri(text: str) -> HubName:
    from huggingface_hub.errors import HfUriError
    from huggingface_hub.utils import parse_hf_uri  # type: ignore[attr-defined]  # it is documented

    try:
        uri = parse_hf_uri(text)
    except HfUriError as error:
        raise ConfigError(f"{text!r} is not a name of the hub: {_line(error)}") from error
    return HubName(kind=str(uri.type), id=uri.id, revision=uri.revision, path=uri.path_in_repo)


def _snapshot(name: HubName, wanted: list[str], ignored: tuple[str, ...] = ()) -> HubCopy:
    from huggingface_hub import snapshot_download

    started = time.monotonic()
    try:
        with _explained(name):
            folder = Path(
                snapshot_download(
                    name.id,
                    repo_type=name.kind,
                    revision=name.revision,
                    allow_patterns=wanted,
                    ignore_patterns=list(ignored),
                    tqdm_class=_progress(),
                )
            )
    except (RuntimeError, OSError) as error:  # of hf_xet, whatever went wrong; a file that ends too early
        raise _broken_off(name, error) from error
    logger.info("%s: commit %s in %s (%.0f s)", name, folder.name[:12], folder, time.monotonic() - started)
    return HubCopy(name=replace(name, revision=folder.name), path=folder)


def _split(name: HubName) -> HubCopy:
    """A split, written as one parquet file next to the files of the hub's cache."""
    from huggingface_hub import cached_assets_path, resolve_revision

    with _explained(name):
        commit = resolve_revision(name.id, repo_type=name.kind, revision=name.revision).resolved
    folder = cached_assets_path("ramet", namespace=name.id, subfolder=f"{commit}/{name.subset or ALL_SUBSETS}")
    file = folder / f"{name.id.rpartition('/')[2]}_{name.split}.parquet"
    copy = HubCopy(name=replace(name, revision=commit), path=file)
    if not file.is_file():
        with (
            _explained(name),
            TemporaryDirectory(dir=folder, prefix="datasets-") as cache,
            open_atomic(file) as parquet,
        ):
            _rows(copy.name, cache).to_parquet(parquet)
    return copy


def _rows(name: HubName, cache: str) -> Any:
    """The rows of a split, by `datasets`, which keeps them in `cache`. Raises as `fetch_model`.

    That cache must be new: where it cannot reach the hub, `datasets` takes rows of any revision that it finds there. So
    it would a folder of this name here.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            f"{name}: splits are read by the package `datasets`: pip install 'ramet[hub]', or name the files: "
            f"hf://datasets/{name.id}/FILE"
        ) from error
    if Path(name.id).is_dir():
        raise ConfigError(
            f"{name}: {name.id} is also a folder here, and `datasets` would read that one; name the files that you "
            f"mean, {name.id}/FILE or hf://datasets/{name.id}/FILE"
        )
    try:
        with _explained(name):
            return load_dataset(name.id, name.subset, split=name.split, revision=name.revision, cache_dir=cache)
    except RametError:
        raise
    except Exception as error:  # whatever it makes of a wrong split, subset or file
        cause = f": {_line(error.__cause__)}" if error.__cause__ else ""  # it may say no more than that it failed
        raise ConfigError(f"{name}: `datasets` cannot load it: {_line(error)}{cause}") from error


def _files(name: HubName, commit: str) -> list[str]:
    """Return all files of the commit, by the list that the hub's client keeps. Raises `ConfigError` without it: then
    another program made the copy, and not of all files.
    """
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        return [file.path for file in get_cached_repo_tree(name.id, repo_type=name.kind, revision=commit)]
    except errors.CachedRepoTreeNotFoundError as error:
        raise _unreachable(name, error, partial=True) from error


@contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """Turn what the hub's client raises into what to do about it."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"{name}: not a name of the hub: {_line(error)}") from error
    except errors.HfHubHTTPError as error:
        raise _refused(name, error) from error
    except (errors.LocalEntryNotFoundError, errors.RevisionResolutionError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refused(name, error.__cause__) from error
        raise _unreachable(name, error, partial=isinstance(error, errors.IncompleteSnapshotError)) from error
    except errors.OfflineModeIsEnabled as error:
        raise ConfigError(f"{name}: HF_HUB_OFFLINE is set; unset it to reach the hub") from error
    except (ConnectionError, TimeoutError, errors.FileMetadataError) as error:
        if constants.is_offline_mode():  # `datasets` says it so
            raise _unreachable(name, error) from error
        raise _broken_off(name, error) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise InfraError(f"{name}: {os_error_text(error)}") from error
    except Exception as error:
        if not (type(error).__module__ or "").startswith(("httpx", "requests", "urllib3")):
            raise
        raise _broken_off(name, error) from error


def _broken_off(name: HubName, error: Exception) -> InfraError:
    return InfraError(f"{name}: the transfer broke off; start again to continue it: {_line(error)}")


def _unreachable(name: HubName, error: Exception, *, partial: bool = False) -> ConfigError:
    """Return a message about the missing files, and how to reach the hub."""
    from huggingface_hub import constants

    reason = f": {_line(error.__cause__)}" if error.__cause__ is not None else ""
    way = f"{_endpoint()} cannot be reached{reason}; connect this machine"
    way = "unset HF_HUB_OFFLINE" if constants.is_offline_mode() else way
    if partial:
        return ConfigError(f"{name}: only a part of it is on this machine; {way} to fetch the rest")
    return ConfigError(f"{name}: is not on this machine; {way} to fetch it")


def _refused(name: HubName, error: Any) -> ConfigError | InfraError:
    """Return what an answer of the hub means."""
    from huggingface_hub import errors

    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        return ConfigError(f"{name}: is gated: ask for access at {name.page}, and {LOG_IN}")
    if isinstance(error, errors.RepositoryNotFoundError):
        kind = "model" if name.kind == "model" else "data set"
        return ConfigError(
            f"{name}: it is not here, and the hub shows no such {kind} to you; look for its name at "
            f"{name.page}, and if it is private, {LOG_IN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(f"{name}: {name.id} has no revision {name.revision!r}; see {name.page}/commits")
    if status == 401:
        return ConfigError(f"{name}: the hub wants a valid token of yours; {LOG_IN}")
    if status == 403:
        return ConfigError(
            f"{name}: your token has no right to do this; give one that has it, or ask the owner: {name.page}"
        )
    return InfraError(f"{name}: the hub answers {status}: {_line(error)}")


def _endpoint() -> str:
    from huggingface_hub import constants

    return _line(constants.ENDPOINT)


def _line(error: object) -> str:
    """Return a text in one line, without names and passwords in addresses, and what signs them."""
    text = re.sub(r"(?<=://)[^\s/@]*@", "", " ".join(str(error).split()).rstrip("."))
    return re.sub(r"(://[^\s?]*)\?[^\s'\"]*", r"\1", text)


@cache
def _progress() -> Any:
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # it is documented

    class FetchProgress(tqdm):
        """Bars on a terminal; elsewhere a line every `EVERY_S`."""

        said = time.monotonic()
        transferred = 0

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{"disable": None, **named})  # type: ignore[no-untyped-call]
            self.counts_bytes = named.get("unit") == "B"
            FetchProgress.said = time.monotonic()

        def update(self, n: float | None = 1) -> bool | None:
            self.transferred += int(n or 0)
            if self.disable and self.counts_bytes and time.monotonic() - FetchProgress.said > EVERY_S:
                FetchProgress.said = time.monotonic()
                logger.info("fetched %.1f of %.1f MB so far", self.transferred / 1e6, (self.total or 0) / 1e6)
            shown: bool | None = super().update(n)
            return shown

    return FetchProgress
