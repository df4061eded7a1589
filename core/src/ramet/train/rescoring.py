"""Log-probabilities for `Need.RESCORED` and `Need.PROBED`: passes of the trainer over rollouts with other contexts.

Rescored are the tokens that a rollout sampled, under a teacher, or after a prompt with a text more. Probed is a text of
the estimator, such as the gold answer, at the beginning of each turn. Both are rows, which the ranks compute as they
do for the old log-probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ramet.cluster.interfaces import Ranks
from ramet.config.checks import max_positions
from ramet.config.schema import Config
from ramet.errors import PluginError
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.plugins import origin
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.policy.batching.rows import Floats, Ids, Row, scored_row
from ramet.policy.batching.threads import Threads
from ramet.policy.rank import PolicyRank
from ramet.rollout.scoring import ScoredGroup
from ramet.types import AdvantageEstimator, Message, Need, Probe

CONTENT = "ramet-content"  # of a message whose end in the chat template is looked for


class Rescorer:
    """Computes what the estimator asks for in addition to the policy's own log-probabilities."""

    def __init__(self, config: Config, estimator: AdvantageEstimator, ranks: Ranks) -> None:
        self._config = config
        self._estimator = estimator
        self._ranks = ranks
        self._who = f"advantage estimator {origin(estimator)}"
        folders = [config.model.path, *([config.train.teacher] if config.train.teacher else [])]
        positions = [max_positions(Path(folder)) for folder in folders]
        self._most_tokens = min((n for n in positions if n is not None), default=None)

    async def rescored(self, rows: Sequence[Row], groups: Sequence[ScoredGroup]) -> list[Floats] | None:
        """Return log-probabilities `[T]` of each row, 0 on inserted tokens; None if the estimator needs none.

        NaN on the sampled tokens of a row for which the estimator gives no context, or a context that is longer than
        the model's positions allow. Raises `PluginError` for contexts that are not texts, one for each rollout.
        """
        if Need.RESCORED not in self._estimator.needs:
            return None
        if not hasattr(self._estimator, "contexts"):
            threads = Threads.of(rows)
            return threads.join(await self._ranks.call(PolicyRank.rescore, threads.rows))
        texts = self._contexts(rows, groups)
        chosen: dict[int, Row] = {}
        for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
            if text is None:
                continue
            prompt = self._with_text(row.prompt_ids, text)
            if self._fits(len(prompt) + len(row.response_ids)):
                chosen[i] = scored_row(row, prompt, row.response_ids, row.mask)
        logprobs = dict(zip(chosen, await self._scored([*chosen.values()]), strict=True))
        return [logprobs.get(i, np.where(row.mask, np.float32(np.nan), np.float32(0))) for i, row in enumerate(rows)]

    async def probed(self, rows: Sequence[Row], groups: Sequence[ScoredGroup]) -> list[Floats] | None:
        """Return for each row `[turns]` the mean log-probability of the probe's tokens at the beginning of each turn;
        None if the estimator needs none.

        NaN where the task has no probe, or the model's positions do not suffice. Rollouts that share a turn's beginning
        share the pass. Raises `PluginError` for a probe that is not one.
        """
        if Need.PROBED not in self._estimator.needs:
            return None
        results = [np.full(int(row.turn_ids.max(initial=0)) + 1, np.nan, np.float32) for row in rows]
        places = defaultdict[tuple[int, bytes], list[tuple[int, int]]](list)  # (row, turn) of each sequence
        chosen: list[Row] = []
        probes = {number: self._probe(groups[number]) for number in sorted({row.group for row in rows})}
        for i, row in enumerate(rows):
            if (probe := probes[row.group]) is None:
                continue
            before, text = (self._encoder.markup(probe.before), self._encoder.untrusted(probe.text))
            response = np.array([*before, *text], np.int32)
            mask = np.arange(len(response)) >= len(before)
            for turn, start in _turn_starts(row).items():
                prefix = np.concatenate([row.prompt_ids, row.response_ids[:start]])
                if not len(text) or not self._fits(len(prefix) + len(response)):
                    continue
                place = places[row.group, prefix.tobytes()]
                if not place:
                    chosen.append(scored_row(row, prefix, response, mask))
                place.append((i, turn))
        for scored, logprobs, place in zip(chosen, await self._scored(chosen), places.values(), strict=True):
            for i, turn in place:
                results[i][turn] = logprobs[scored.mask].mean(dtype=np.float64)
        return results

    async def _scored(self, rows: list[Row]) -> list[Floats]:
        return await self._ranks.call(PolicyRank.rescore, rows) if rows else []

    def _fits(self, n_tokens: int) -> bool:
        return self._most_tokens is None or n_tokens <= self._most_tokens

    def _contexts(self, rows: Sequence[Row], groups: Sequence[ScoredGroup]) -> list[str | None]:
        """Return the estimator's text for each row. Rows of a group are its valid rollouts, in order."""
        texts: list[str | None] = []
        for number in dict.fromkeys(row.group for row in rows):
            members = groups[number].valid
            with boundary(self._who, "advantage", on=" in contexts"):
                given = self._estimator.contexts(  # type: ignore[attr-defined]  # may be left out
                    [member.rollout for member in members], [member.reward for member in members]
                )
            if not isinstance(given, list | tuple) or len(given) != len(members):
                raise PluginError(
                    f"{self._who}: contexts returned {given!r:.80} for {len(members)} rollouts: return a list with a "
                    f"text or None for each{defined_at(self._estimator, 'contexts')}"
                )
            for text in given:
                if not isinstance(text, str | None):
                    raise PluginError(
                        f"{self._who}: contexts has {text!r:.80} for a rollout: give a text or None"
                        f"{defined_at(self._estimator, 'contexts')}"
                    )
            texts += given
        return texts

    def _probe(self, group: ScoredGroup) -> Probe | None:
        with boundary(self._who, "advantage", on=f" in probe, of task {group.task.id!r}"):
            probe = self._estimator.probe(group.task)  # type: ignore[attr-defined]  # `check_needs` asked for it
        if not isinstance(probe, Probe | None):
            raise PluginError(
                f"{self._who}: probe returned {probe!r:.80}: return a Probe or None"
                f"{defined_at(self._estimator, 'probe')}"
            )
        return probe

    @cached_property
    def _encoder(self) -> Encoder:
        return build_encoder(self._config)

    @cached_property
    def _message_end(self) -> Ids:
        """The chat template's tokens between the end of the user's message and the assistant's first token."""
        text = self._encoder.template.render([Message(role="user", content=CONTENT)], generation_prompt=True)
        return np.array(self._encoder.markup(text.rpartition(CONTENT)[2]), np.int32)

    def _with_text(self, prompt: Ids, text: str) -> Ids:
        """Return the prompt with a text at the end of its last message; after a prompt that does not end as the chat
        template ends one. The prompt's own tokens stay as they are.
        """
        end = self._message_end
        cut = len(prompt) - len(end)
        if not len(end) or cut < 0 or not np.array_equal(prompt[cut:], end):
            cut = len(prompt)
        inserted = np.array(self._encoder.untrusted(text), np.int32)
        return np.concatenate([prompt[:cut], inserted, prompt[cut:]])


def _turn_starts(row: Row) -> dict[int, int]:
    """Return where each turn's first sampled token is on the response."""
    sampled = np.flatnonzero(row.mask)
    turns, first = np.unique(row.turn_ids[sampled], return_index=True)
    return {int(turn): int(sampled[i]) for turn, i in zip(turns, first, strict=True)}
