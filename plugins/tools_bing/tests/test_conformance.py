"""Everything that this plugin registers keeps the contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ramet.testing import check_plugin


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"A page.")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def page() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_plugin_conforms(page: str, tmp_path: Path) -> None:
    options = {"tools.fetch": {"allow_private": ["127.0.0.1"], "cache_folder": str(tmp_path)}}
    assert check_plugin("tools_bing", options=options, examples={"tools.fetch": [{"url": page}]})
