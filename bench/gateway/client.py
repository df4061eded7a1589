"""The agents of the bench, in a process of their own: `client.py` runs one JSON command a line from its input.

    {"url": …, "dialect": "chat", "stream": false, "keys": [one for each session], "turns": 10, "tokens": …}

Each session makes one request after the other: it sends its conversation with the reply's calls and a result for each.
It prints one JSON line: the requests and the bytes of their replies. `{"url": …}` without `keys` sends the same bodies
again, to a server that answers with as many bytes as the header `x-bytes` says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import ClientSession, TCPConnector
from dialects import DIALECTS, Dialect

Sent = tuple[bytes, int]  # the body of a request, and how many bytes the reply had


@dataclass
class Agents:
    """The agents of one run, and what they sent."""

    dialect: Dialect
    stream: bool
    keys: list[str]
    turns: int
    words: list[str]  # of each result
    sent: list[list[Sent]] = field(default_factory=list)

    async def run(self, http: ClientSession, url: str) -> None:
        self.sent = await asyncio.gather(*(self._session(http, url, i) for i in range(len(self.keys))))

    async def again(self, http: ClientSession, url: str) -> None:
        """Send the bodies of the last run to the bare server, which must answer with as many bytes."""

        async def session(sent: list[Sent], key: str) -> None:
            for body, n_bytes in sent:
                reply = await self._post(
                    http, url, key, body, **{"x-bytes": str(n_bytes), "x-stream": str(self.stream)}
                )
                assert len(reply) == n_bytes

        await asyncio.gather(*(session(sent, key) for sent, key in zip(self.sent, self.keys, strict=True)))

    async def _session(self, http: ClientSession, url: str, number: int) -> list[Sent]:
        conversation, sent = [{"role": "user", "content": self._text(number, 0)}], list[Sent]()
        for turn in range(1, self.turns + 1):
            body = json.dumps({**self.dialect.body(conversation), "stream": self.stream}).encode()
            reply = await self._post(http, url, self.keys[number], body)
            sent.append((body, len(reply)))
            said = self.dialect.streamed(list(_events(reply))) if self.stream else self.dialect.said(json.loads(reply))
            conversation += self.dialect.answered(said, self._text(number, turn))
        return sent

    async def _post(self, http: ClientSession, url: str, key: str, body: bytes, **more: str) -> bytes:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **more}
        async with http.post(f"{url}{self.dialect.path}", data=body, headers=headers) as response:
            reply = await response.read()
            assert response.status == 200, reply
        return reply

    def _text(self, number: int, turn: int) -> str:
        return " ".join(Random(f"{number}/{turn}").choices(self.words, k=len(self.words)))


def _events(reply: bytes) -> Iterator[Any]:
    for line in reply.split(b"\n"):
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))


async def main() -> None:
    agents: Agents | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        async with ClientSession(connector=TCPConnector(limit=0)) as http:
            if "keys" in command:
                url, dialect = command.pop("url"), DIALECTS[command.pop("dialect")]
                agents = Agents(dialect, **command)
                await agents.run(http, url)
            else:
                assert agents is not None
                await agents.again(http, command["url"])
        n_bytes = [n for session in agents.sent for _, n in session]
        print(json.dumps({"requests": len(n_bytes), "reply_bytes": sum(n_bytes)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
