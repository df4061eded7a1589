"""The process that turns pages into text: `python -m ramet_tools_bing.fetch.extractor SOCKET`.

An answer is `{"title": …, "text": …}` or `{"error": …}`. The process has no environment, may write no files, and is
ended by a signal if one page takes too long.
"""

from __future__ import annotations

import base64
import os
import resource
import signal
import sys
from io import BytesIO
from typing import Any

from ramet.helpers import Caller

MEMORY_BYTES = 1 << 30  # above what the program itself has
TITLE_CHARS = 300


def extract(request: dict[str, Any]) -> dict[str, str]:
    most, body = int(request["chars"]), base64.b64decode(request["body"])
    if request["kind"] == "pdf":
        title, text = _pdf(body, most)
    elif request["kind"] == "plain":
        title, text = "", _decoded(body, request["charset"])
    else:
        title, text = _html(body, request["url"], request["charset"])
    return {"title": " ".join(title.split())[:TITLE_CHARS], "text": text.strip()[:most]}


def _html(body: bytes, url: str, charset: str | None) -> tuple[str, str]:
    import trafilatura

    page = _decoded(body, charset) if charset else body
    document = trafilatura.bare_extraction(
        page, url=url, with_metadata=True, include_comments=False, include_tables=True, favor_recall=True
    )
    title = getattr(document, "title", None) or ""
    text = getattr(document, "text", None) or trafilatura.html2txt(page) or ""
    return title, text


def _pdf(body: bytes, most: int) -> tuple[str, str]:
    import pypdf

    reader = pypdf.PdfReader(BytesIO(body))
    if reader.is_encrypted:
        reader.decrypt("")
    parts: list[str] = []
    for page in reader.pages:
        parts.append(page.extract_text())
        if sum(map(len, parts)) >= most:
            break
    title = reader.metadata.title if reader.metadata is not None else None
    return str(title or ""), "\n".join(parts)


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def limit() -> None:
    """Limit memory and files of this process: it may read modules that parsers import late, and write nothing."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    caller = Caller()
    caller.end_with()
    os.chdir("/")
    with open(os.devnull, "wb") as nothing:  # parsers print
        os.dup2(nothing.fileno(), sys.stdout.fileno())
        os.dup2(nothing.fileno(), sys.stderr.fileno())
    try:
        import pypdf  # noqa: F401  # before the limits, so that they count above it
        import trafilatura  # noqa: F401
    except Exception as error:
        caller.ready(problem=f"{type(error).__name__}: {error}")
        return
    if sys.platform == "linux":
        limit()
    caller.ready()
    for request in caller.requests():
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        try:
            answer = extract(request)
        except Exception as error:  # parsers raise anything
            answer = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        caller.reply(answer)


if __name__ == "__main__":
    main()
