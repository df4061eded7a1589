"""A process that turns pages into text. Runs as a program of its own, because parsers hang and crash on bad input.

It reads pages from its standard input and answers on its standard output, each message with its length before it (4
bytes, big-endian). A page is a JSON header of one line, then the body; an answer is `{"title": …, "text": …}` or
`{"error": …}`, and `{}` when the process is ready. It has no environment, may write no files, and is ended by a signal
if one page takes too long.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from io import BytesIO
from typing import Any, BinaryIO

MEMORY_BYTES = 1 << 30  # above what the program itself has
TITLE_CHARS = 300


def extract(header: dict[str, Any], body: bytes) -> dict[str, str]:
    most = int(header["chars"])
    if header["kind"] == "pdf":
        title, text = _pdf(body, most)
    elif header["kind"] == "plain":
        title, text = "", _decoded(body, header.get("charset"))
    else:
        title, text = _html(body, header)
    return {"title": " ".join(title.split())[:TITLE_CHARS], "text": text.strip()[:most]}


def _html(body: bytes, header: dict[str, Any]) -> tuple[str, str]:
    import trafilatura

    page = _decoded(body, header["charset"]) if header.get("charset") else body
    found = trafilatura.bare_extraction(
        page, url=header["url"], with_metadata=True, include_comments=False, include_tables=True, favor_recall=True
    )
    title = getattr(found, "title", None) or ""
    text = getattr(found, "text", None) or trafilatura.html2txt(page) or ""
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


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Until the end of the input."""
    while (size := source.read(4)) and len(size) == 4:
        message = source.read(int.from_bytes(size, "big"))
        head, _, body = message.partition(b"\n")
        header = json.loads(head)
        signal.setitimer(signal.ITIMER_REAL, float(header["timeout_s"]))
        try:
            answer = extract(header, body)
        except Exception as error:  # parsers raise anything
            answer = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(sink, answer)


def send(sink: BinaryIO, answer: dict[str, str]) -> None:
    encoded = json.dumps(answer).encode("ascii")
    sink.write(len(encoded).to_bytes(4, "big") + encoded)
    sink.flush()


def limit() -> None:
    """Of memory and files of this process: it may read modules that parsers import late, and write nothing."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The first answer says that the process is ready, or why it never will be."""
    sys.path[:] = json.loads(sys.argv[1])
    sink = sys.stdout.buffer
    sys.stdout = sys.stderr  # parsers print
    try:
        import pypdf  # noqa: F401  # before the limits, so that they count above it
        import trafilatura  # noqa: F401
    except Exception as error:
        send(sink, {"error": f"{type(error).__name__}: {error}"})
        return
    if sys.platform == "linux":
        limit()
    send(sink, {})
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
