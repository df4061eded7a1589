"""The same work without a framework: an asyncio loop that keeps tokens, masks and log-probabilities, and nothing else.

`free` lets every rollout go at its own pace: the least that any loop can cost. `barrier` plays in rounds, as the
released algorithm does: all generations, then all tools, then the next round. A tool that raises loses its rollout.
"""

from __future__ import annotations

import asyncio
import re
from array import array

from rollout_loop.work import QUESTION, SYSTEM, CannedTurn, Fixture, Load, Played, ToolFailedError, Tools

FIND_CALL = re.compile(r"<search>(.*?)</search>", re.DOTALL)


class Loop:
    """Holds what its rollouts share."""

    def __init__(self, fixture: Fixture, load: Load, tools: Tools) -> None:
        self.fixture = fixture
        self.load = load
        self.tools = tools
        self._encode = fixture.tokenizer.encode
        self._decode = fixture.tokenizer.decode
        self._before = self._encode(" <result>\n", add_special_tokens=False)
        self._after = self._encode("\n</result>", add_special_tokens=False)

    async def free(self) -> list[Played]:
        groups = range(self.load.n_tasks)
        prompts = [self._prompt(task) for task in groups]
        members = range(self.load.group_size)
        return await asyncio.gather(*(self._play(prompts[task], task, member) for task in groups for member in members))

    async def barrier(self) -> list[Played]:
        keys = [(task, member) for task in range(self.load.n_tasks) for member in range(self.load.group_size)]
        prompts = [self._prompt(task) for task in range(self.load.n_tasks)]
        played = [_new(prompts[task]) for task, _ in keys]
        active = list(range(len(keys)))
        for turn in range(self.load.calls + 1):
            sampled = await asyncio.gather(*(self._generate(played[i], turn) for i in active))
            asked = [i for i, one in zip(active, sampled, strict=True) if self._append(played[i], one)]
            await asyncio.gather(*(self._use(played[i], *keys[i], turn) for i in asked))
            active = [i for i in asked if not played[i].lost]
        return played

    async def _play(self, prompt: array[int], task: int, member: int) -> Played:
        played = _new(prompt)
        turn = 0
        while self._append(played, await self._generate(played, turn)):
            await self._use(played, task, member, turn)
            if played.lost:
                break
            turn += 1
        return played

    def _prompt(self, task: int) -> array[int]:
        talk = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION.format(task)}]
        text = self.fixture.tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        return array("i", self._encode(text, add_special_tokens=False))

    async def _generate(self, played: Played, turn: int) -> CannedTurn:
        """The fake engine is given all tokens so far, and yields to the event loop once."""
        request = played.prompt + played.ids
        await asyncio.sleep(0)
        assert len(request) >= len(played.prompt)
        return self.fixture.turn(turn, self.load.calls)

    def _append(self, played: Played, sampled: CannedTurn) -> bool:
        """Append what was sampled; True if it calls a tool."""
        played.ids.extend(sampled.ids)
        played.mask.extend([1] * len(sampled.ids))
        played.logprobs.extend(sampled.logprobs)
        return FIND_CALL.search(str(self._decode(sampled.ids.tolist()))) is not None

    async def _use(self, played: Played, task: int, member: int, turn: int) -> None:
        try:
            result = await self.tools.run(task, member, turn)
        except ToolFailedError:
            played.lost = True
            return
        inserted = self._before + self._encode(result, add_special_tokens=False) + self._after
        played.ids.extend(inserted)
        played.mask.extend([0] * len(inserted))
        played.logprobs.extend([0.0] * len(inserted))


def _new(prompt: array[int]) -> Played:
    return Played(prompt, array("i"), array("i"), array("f"))
