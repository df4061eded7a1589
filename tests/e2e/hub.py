"""A hub on the loopback: what `huggingface_hub` asks of huggingface.co, for the repositories that a test puts there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API = re.compile(r"/api/(models|datasets)/([\w.-]+/[\w.-]+)(?:/(revision|tree|preupload|commit)/([^/]+)(?:/(.+))?)?")
RESOLVE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")
PATHS = re.compile(r"/api/(models|datasets)/([\w.-]+/[\w.-]+)/paths-info/([^/]+)")
WRITE_CHECK = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/auth-check/write")
LFS = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch")
TOKEN = "hf_loopback"


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> files
    main: str = ""
    gated: bool = False
    private: bool = False
    moving: bool = False  # every look at the main branch finds a new commit

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Add a commit to the main branch; returns its id."""
        digest = hashlib.sha1(repr((self.main, sorted(files.items()))).encode()).hexdigest()
        self.commits[digest], self.main = dict(files), digest
        return digest

    def at(self, revision: str) -> str | None:
        commit = self.main if revision == "main" else revision
        if self.moving and revision == "main":
            self.commit(self.commits[self.main] | {"README.md": self.main.encode()})
        return commit if commit in self.commits else None


@dataclass
class Hub:
    """`repositories` by `models/OWNER/NAME` and `datasets/OWNER/NAME`."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)  # by sha256
    requests: list[str] = field(default_factory=list)
    cut_at: int | None = None  # bytes after which the connection of a file breaks off
    short: str = ""  # a file that is sent without its last byte
    down: bool = False  # answers everything with 503
    full: bool = False  # takes no commit
    url: str = ""

    def put(self, name: str, files: Mapping[str, bytes], *, gated: bool = False, private: bool = False) -> str:
        repository = self.repositories.setdefault(name, Repository(gated=gated, private=private))
        return repository.commit(files)

    def put_folder(self, name: str, folder: Path) -> str:
        return self.put(name, {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        self.hub.requests.append(f"{self.command} {unquote(urlsplit(self.path).path)}")

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if "/paths-info/" in path:
            return self._paths(path, body)
        if self._token() != TOKEN:
            return self._fail(401, "", "Invalid credentials in Authorization header")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name.startswith("others/"):
                return self._fail(403, "", "You don't have the rights to create a model under others")
            if f"models/{name}" in self.hub.repositories:
                return self._json({"error": "You already created this repo", "url": f"{self.hub.url}/{name}"}, 409)
            made = Repository(private=asked.get("visibility") == "private")
            made.commit({})
            self.hub.repositories[f"models/{name}"] = made
            return self._json({"url": f"{self.hub.url}/{name}", "id": name})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if LFS.fullmatch(path):
            wanted = json.loads(body)["objects"]
            uploads = [self._upload(one["oid"]) | {"size": one["size"]} for one in wanted]
            return self._json({"objects": uploads, "transfer": "basic"})
        match = API.fullmatch(path)
        assert match is not None, path
        repository = self.hub.repositories[f"{match[1]}/{match[2]}"]
        if match[3] == "preupload":
            files = json.loads(body)["files"]
            large = {one["path"] for one in files if one["path"].endswith(".safetensors")}
            return self._json({"files": [
                {"path": one["path"], "uploadMode": "lfs" if one["path"] in large else "regular", "shouldIgnore": False}
                for one in files
            ]})  # fmt: skip
        assert match[3] == "commit", path
        if self.hub.full:
            return self._fail(507, "", f"no room: {self.hub.url}/upload?X-Amz-Signature=secret")
        entries = [json.loads(line) for line in filter(None, body.splitlines())]
        gone = {entry["value"]["path"] for entry in entries if entry["key"] == "deletedFile"}
        kept = {path: content for path, content in repository.commits[repository.main].items() if path not in gone}
        commit = repository.commit(kept | dict(self._changed(entries)))
        return self._json(
            {"commitUrl": f"{self.hub.url}/{match[2]}/commit/{commit}", "commitOid": commit, "hookOutput": ""}
        )

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.uploads[self.path.rpartition("/")[2]] = body
        self._send(200, b"", {"ETag": "x"})

    def _upload(self, oid: str) -> dict[str, object]:
        return {"oid": oid, "actions": {"upload": {"href": f"{self.hub.url}/upload/{oid}", "header": {}}}}

    def _changed(self, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bytes]]:
        for entry in entries:
            if entry["key"] == "file":
                yield entry["value"]["path"], base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                yield entry["value"]["path"], self.hub.uploads[entry["value"]["oid"]]

    def _get(self) -> None:
        path = urlsplit(self.path).path
        if self.hub.down:
            return self._fail(503, "", "Service Unavailable")
        if (match := WRITE_CHECK.fullmatch(path)) is not None:
            mine = self._token() == TOKEN and not match[1].startswith("others/")
            return self._json({}) if mine else self._fail(403, "", "You don't have the rights to write there")
        if (match := RESOLVE.fullmatch(path)) is not None:
            return self._file(
                f"{'datasets' if match[1] else 'models'}/{match[2]}", unquote(match[3]), unquote(match[4])
            )
        match = API.fullmatch(path)
        if match is None:
            return self._fail(404, "", f"no {path}")
        name = f"{match[1]}/{match[2]}"
        if (found := self._commit(name, unquote(match[4] or "main"), info=match[3] != "tree")) is None:
            return None
        files = self.hub.repositories[name].commits[found]
        if match[3] == "tree":
            return self._tree(files, f"{unquote(match[5])}/" if match[5] else "")
        return self._json({"id": match[2], "sha": found, "siblings": [{"rfilename": path} for path in files],
                           "private": False, "tags": [], "downloads": 0, "likes": 0})  # fmt: skip

    def _tree(self, files: Mapping[str, bytes], folder: str) -> None:
        below = {path: content for path, content in files.items() if path.startswith(folder)}
        if folder and not below:
            return self._fail(404, "EntryNotFound", f"{folder} does not exist")
        if "recursive=true" not in self.path.lower():
            inside = {path.removeprefix(folder).partition("/")[0] for path in below if "/" in path.removeprefix(folder)}
            below = {path: content for path, content in below.items() if "/" not in path.removeprefix(folder)}
            folders = [{"type": "directory", "path": folder + name, "size": 0, "oid": _oid(b"")} for name in inside]
        else:
            folders = []
        return self._json([*folders, *(_entry(path, content) for path, content in below.items())])

    def _paths(self, path: str, body: bytes) -> None:
        """Answer which of these files there are, as `datasets` asks."""
        match = PATHS.fullmatch(path)
        assert match is not None, path
        if (commit := self._commit(f"{match[1]}/{match[2]}", unquote(match[3]))) is not None:
            files, asked = self.hub.repositories[f"{match[1]}/{match[2]}"].commits[commit], parse_qs(body.decode())
            self._json([_entry(path, files[path]) for path in asked.get("paths", []) if path in files])

    def _commit(self, name: str, revision: str, *, info: bool = False) -> str | None:
        """The commit, or None after an error was sent."""
        repository, allowed = self.hub.repositories.get(name), self._token() == TOKEN
        if self._token() not in (None, TOKEN):
            self._fail(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not allowed):
            self._fail(404 if allowed else 401, "RepoNotFound", "Repository not found")
        elif repository.gated and not allowed and not info:
            self._fail(401, "GatedRepo", f"Access to {name} is restricted")
        elif (commit := repository.at(revision)) is None:
            self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return commit
        return None

    def _file(self, name: str, revision: str, path: str) -> None:
        if (commit := self._commit(name, revision)) is None:
            return
        content = self.hub.repositories[name].commits[commit].get(path)
        if content is None:
            return self._fail(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(content)}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self._send(
                200, content[:-1] if self.command == "GET" and path == self.hub.short else content, headers
            )
        last = int(span[2] or len(content) - 1)
        part = content[int(span[1]) : last + 1]
        return self._send(206, part, headers | {"Content-Range": f"bytes {span[1]}-{last}/{len(content)}"})

    def _token(self) -> str | None:
        given = self.headers.get("Authorization")
        return None if given is None else given.removeprefix("Bearer ")

    def _json(self, body: object, status: int = 200) -> None:
        self._send(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str, message: str, more: Mapping[str, str] | None = None) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(more or {})}
        self._send(status, json.dumps({"error": message}).encode(), {"Content-Type": "application/json", **headers})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut_at
        if cut is not None and "/resolve/" in self.path and len(body) > cut:
            self.wfile.write(body[:cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)


def _entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
