"""`llm_judge`: a language model says whether the answer means the same as a gold answer.

1 or 0 is the judge's verdict. Without a verdict the answer is not judged (None), never 0: the server failed, or its
reply has no verdict, also when asked again. The server may refuse an answer, but not the same question with a gold
answer in its place. Then the model caused it (usually the answer is too long for the judge): 0. Verdicts are asked for
at temperature 0 and kept in a file, so a resumed run or a second scoring of the same rollouts asks nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from ramet import ChatReply, InfraError, OpenAIClient, RequestRefused, Rollout, Score, Services, Task, user_prompt
from ramet_rewards.boxed import final
from ramet_rewards.comparison import gold_answers, gold_problem
from ramet_rewards.config import LlmJudgeConfig
from ramet_rewards.equality import plainly_equal
from ramet_rewards.judge_prompts import fill, load_prompt, verdict

logger = logging.getLogger("ramet.rewards.llm_judge")  # among Ramet's own, whose news are shown


class LlmJudge:
    """`client.usage` counts requests, tokens and dollars."""

    per_rollout = True

    def __init__(self, config: LlmJudgeConfig) -> None:
        self.config = config
        self.client = OpenAIClient(config.server, "rewards.llm_judge.params.server")
        self._key = self.client.name.removesuffix(".server").removesuffix(".params")  # of two judges the news differ
        self._prompt = load_prompt(config.prompt)
        self._said: set[str] = set()  # reasons for missing verdicts

    async def start(self, services: Services) -> None:
        """Connect. Raises `ConfigError` or `InfraError` if the server cannot be asked."""
        kept = Path(self.config.cache).expanduser() if self.config.cache else services.folder / "verdicts.sqlite"
        await self.client.start(services, cache=kept)
        await self.client.check()

    def check_task(self, task: Task) -> str | None:
        return gold_problem(task)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = tuple(gold_answers(group[0], "llm_judge"))
        answers = sorted({final(rollout.answer) for rollout in group if rollout.answer is not None})
        question = group[0].task.question
        scores = await asyncio.gather(*(self._score(question, golds, answer) for answer in answers))
        judged = dict(zip(answers, scores, strict=True))
        return [_score(0.0) if rollout.answer is None else judged[final(rollout.answer)] for rollout in group]

    async def aclose(self) -> None:
        usage = self.client.usage
        logger.info(
            "%s: %d verdicts asked for and %d kept ones used, %d failed, %d + %d tokens, %.2f dollars",
            self._key,
            usage.requests, usage.cached, usage.failures, usage.input_tokens, usage.output_tokens, usage.dollars,
        )  # fmt: skip
        await self.client.aclose()

    async def _score(self, question: str, golds: tuple[str, ...], answer: str) -> Score | None:
        if not answer:
            return _score(0.0)
        if len(answer) > self.config.max_answer_chars:
            return _score(0.0, too_long=1.0)
        if any(plainly_equal(gold, answer) for gold in golds):
            return _score(1.0)
        try:
            reply = await self._ask(question, golds, answer)
        except RequestRefused as error:
            if await self._answers(question, golds):
                return _score(0.0, refused=1.0)
            self._warn("refused", str(error))
            return None
        except InfraError as error:
            self._warn(str(error).removeprefix(self.client.name)[:60], str(error))
            return None
        said = verdict(reply.text)
        if said is None:
            self._warn("no verdict", f"no verdict in {reply.text[-80:]!r}")
            return None
        return _score(float(said), asked=1.0)

    async def _ask(self, question: str, golds: tuple[str, ...], answer: str) -> ChatReply:
        return await self.client.chat(
            user_prompt(fill(self._prompt, question, golds, answer)),
            deadline_s=self.config.deadline_s,
            cached=True,
            check=lambda text: verdict(text) is not None,
            prompt=self.config.prompt,
            temperature=0,
            max_tokens=self.config.max_tokens,
            **self.config.extra,
        )

    async def _answers(self, question: str, golds: tuple[str, ...]) -> bool:
        """Whether the server answers this question at all."""
        try:
            await self._ask(question, golds, golds[0])
        except InfraError:
            return False
        return True

    def _warn(self, kind: str, reason: str) -> None:
        """Warn once for each kind; the core counts the rollouts."""
        level = logging.DEBUG if kind in self._said else logging.WARNING
        self._said.add(kind)
        logger.log(level, "%s: an answer is not judged: %s", self._key, reason)


def _score(value: float, *, asked: float = 0.0, too_long: float = 0.0, refused: float = 0.0) -> Score:
    return Score(value=value, parts={"asked": asked, "too_long": too_long, "refused": refused})
