"""The released schedule: rounds of one generation each, for all prompts of a step together.

A round: one engine call continues every active row, and all wait for the slowest. All tool calls of the round run, and
all wait for the slowest. Each prompt with budget left copies active rows where its rule says so, older rows first. Each
prompt without an active row starts one fresh row. So a group's missing rollouts come one by one, and a branch is
decided by the segment before the tool call. An entropy is compared with the first one ever seen at the row's place in a
batch, from any prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from ramet import Fault, Group
from ramet_release.internals import LiveRollout, RolloutKey, group_of, new_root, path_text
from ramet_release.policy import BranchDraw, LockstepPolicy
from ramet_release.rows import Cuts, LockstepRow, cut_response, n_attended, padding_copy
from ramet_release.turn_player import TurnPlayer


@dataclass(slots=True, kw_only=True, eq=False)
class LockstepBatch:
    """All rollouts of one call of `run`. `draw` gives numbers in [0, 1); `base` is the worker's table."""

    player: TurnPlayer
    policy: LockstepPolicy
    step: int
    base: MutableMapping[int, float]
    draw: Callable[[], float]
    step_ends_at: float  # in the event loop's time
    rows: list[LockstepRow] = field(default_factory=list)  # in the order of their creation
    rounds: int = 0
    _roots: list[int] = field(default_factory=list)  # that each prompt has started
    _consecutive: list[int] = field(default_factory=list)  # rounds in which each prompt got rows, without a break

    async def run(self, roots: Sequence[int]) -> None:
        """Run all rounds. `roots`: with how many rows each prompt starts."""
        self._roots, self._consecutive = [0] * len(roots), [0] * len(roots)
        for prompt, n in enumerate(roots):
            for _ in range(n):
                self._start(prompt)
        while active := [row for row in self.rows if row.is_active]:
            if asyncio.get_running_loop().time() >= self.step_ends_at:
                self._out_of_time(active)
                break
            await self._round(active)
        cuts: Cuts = {}
        for row in self.rows:
            cut_response(row.live, self.player.rules.config.max_response_tokens, cuts, self.player.rules.encoder)

    def groups(self) -> list[Group]:
        """The rows for training, in the order of the prompts: responses end with their first end of sequence."""
        cuts: Cuts = {}
        rules = self.player.rules
        for row in self.rows:
            attended = n_attended(row.live.segments[1:], rules.encoder.eos_ids)
            cut_response(row.live, attended, cuts, rules.encoder)
            row.live.answer = rules.answer(row.live.segments[1:])
        live = [[row.live for row in self.rows if row.prompt == prompt] for prompt in range(len(self._roots))]
        return [group_of(prompt.task, rows) for prompt, rows in zip(self.player.prompts, live, strict=True)]

    async def _round(self, active: Sequence[LockstepRow]) -> None:
        self.rounds += 1
        started = time.perf_counter()
        await self.player.play(active)
        for row in active:
            row.live.add_stat("seconds", time.perf_counter() - started)
            self.player.counts.done += not row.is_active
        grown = self._branch([row for row in active if row.is_active]) | self._refill()
        if grown:
            self._consecutive = [count + 1 if prompt in grown else 0 for prompt, count in enumerate(self._consecutive)]

    def _branch(self, active: Sequence[LockstepRow]) -> set[int]:
        """Copy active rows; the prompts that got some. New rows are not asked about in their first round."""
        by_prompt: dict[int, list[LockstepRow]] = {}
        for row in active:
            by_prompt.setdefault(row.prompt, []).append(row)
        grown, sizes = set(), self._sizes()
        for prompt, rows in by_prompt.items():
            room = self._size - sizes[prompt]
            for row in rows:
                n_copies = self._copy(row, min(self.policy.beam_size - 1, room)) if self._branches else 0
                room -= n_copies
                grown |= {prompt} if n_copies else set()
        return grown

    def _copy(self, row: LockstepRow, attempts: int) -> int:
        """How many of the attempts made a copy of this row."""
        n_copies = 0
        for _ in range(attempts):
            attempt = BranchDraw(
                draw=self.draw(),
                now=row.entropy,
                base=self.base[row.index],
                consecutive=self._consecutive[row.prompt],
            )
            if self.policy.branches(attempt):
                self._add(row.copied(len(self.rows)))
                self.player.counts.forks += 1
                n_copies += 1
        return n_copies

    def _refill(self) -> set[int]:
        """One fresh row for each prompt that has none active and fewer than it should have; those prompts."""
        active, sizes = {row.prompt for row in self.rows if row.is_active}, self._sizes()
        idle = [p for p in range(len(self._roots)) if p not in active and sizes[p] < self._size]
        for prompt in idle:
            self._start(prompt).add_stat("filled", 1)
        return set(idle)

    def _start(self, prompt: int) -> LiveRollout:
        """A row with nothing but its prompt."""
        lockstep_prompt = self.player.prompts[prompt]
        path = (self._next_root(prompt),)
        key = RolloutKey(self.player.engine.plan.salt, self.step, lockstep_prompt.name, path_text(path))
        return self._add(LockstepRow(len(self.rows), prompt, new_root(key, lockstep_prompt.segment)))

    def _add(self, row: LockstepRow) -> LiveRollout:
        deadline = asyncio.get_running_loop().time() + self.player.rules.config.deadline_s
        row.live.ends_at = min(deadline, self.step_ends_at)
        self.rows.append(row)
        return row.live

    def _next_root(self, prompt: int) -> int:
        root = self.player.engine.plan.root(self._roots[prompt])
        self._roots[prompt] += 1
        return root

    def _out_of_time(self, active: Sequence[LockstepRow]) -> None:
        """Mask running rows, and fill up groups that are short."""
        fault = Fault(where="deadline", message=f"not finished within rollout.step_deadline_s (round {self.rounds})")
        for row in active:
            row.live.fault = fault
        last = {row.prompt: row for row in self.rows}
        for prompt, n in self._sizes().items():
            for _ in range(self._size - n):
                self.rows.append(padding_copy(last[prompt], len(self.rows), self._next_root(prompt), fault))

    def _sizes(self) -> Counter[int]:
        """Rows of each prompt."""
        return Counter(row.prompt for row in self.rows)

    @property
    def _size(self) -> int:
        """Rollouts of each prompt."""
        return self.player.engine.plan.group_size

    @property
    def _branches(self) -> bool:
        return self.player.engine.plan.branch
