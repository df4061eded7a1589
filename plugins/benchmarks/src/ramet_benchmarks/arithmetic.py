"""`arithmetic`: generated problems. A seeded order goes over all of them; the first are the test split and the others
the train split, so no problem can be in both. Of a pair like 12*7 and 7*12 only one is ever used.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping

from ramet import BenchmarkInfo, ConfigError, Rollout, Task, user_prompt
from ramet_benchmarks.answers import integer
from ramet_benchmarks.config import ArithmeticConfig

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMMUTATIVE = frozenset("+*")
_MASK = (1 << 64) - 1
_ROUNDS = 4


class Arithmetic:
    """Tasks like `12*7=?` with whole numbers as answers, scored by equality."""

    def __init__(self, config: ArithmeticConfig) -> None:
        _check(config)
        self.config = config
        self.info = BenchmarkInfo(
            description=f"generated arithmetic on whole numbers up to {config.max_operand}",
            splits=("train", "test"),
            metrics=("accuracy",),
            source="generated from a seed, without a data file",
            licence="MIT",
        )

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        """Make the tasks of a split. The test split does not depend on `n_train`."""
        n_test, n_train = self.config.n_test, self.config.n_train
        if split not in self.info.splits:
            raise ConfigError(f"benchmarks.arithmetic has no split {split!r}; allowed: {', '.join(self.info.splits)}")
        first, last = (0, n_test) if split == "test" else (n_test, None if n_train is None else n_test + n_train)
        problems = itertools.islice(self._problems(), first, last)
        return (self._task(*problem) for problem in itertools.islice(problems, limit))

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        value = None if rollout.answer is None else integer(rollout.answer)
        return {"accuracy": float(value == int(rollout.task.answer[0]))}

    def _task(self, left: int, sign: str, right: int) -> Task:
        problem = f"{left}{sign}{right}"
        return Task(
            id=f"arithmetic/{problem}",
            prompt=user_prompt(self.config.prompt.replace("{problem}", problem)),
            answer=(str(OPERATORS[sign](left, right)),),
            data_source="arithmetic",
        )

    def _problems(self) -> Iterator[tuple[int, str, int]]:
        """Yield every problem once, in the order of the seed."""
        c = self.config
        n = c.max_operand - c.min_operand + 1
        for number in shuffled(n * n * len(c.operators), c.seed):
            operands, which = divmod(number, len(c.operators))
            left, right = (c.min_operand + operand for operand in divmod(operands, n))
            if c.operators[which] not in COMMUTATIVE or _is_chosen(left, right, c.seed):
                yield left, c.operators[which], right


def _is_chosen(left: int, right: int, seed: int) -> bool:
    """Choose one of (a, b) and (b, a) by a coin."""
    coin = mix(seed, min(left, right), max(left, right)) & 1
    return left == right or (left < right) == bool(coin)


def _check(config: ArithmeticConfig) -> None:
    problems = []
    unknown = [sign for sign in config.operators if sign not in OPERATORS]
    if unknown or not config.operators or len(set(config.operators)) < len(config.operators):
        problems.append(f"operators is {config.operators}; allowed: one or more of {' '.join(OPERATORS)}, each once")
    divides = not {"//", "%"}.isdisjoint(config.operators)
    if not int(divides) <= config.min_operand <= config.max_operand:
        problems.append(
            f"min_operand is {config.min_operand} and max_operand {config.max_operand}; allowed: "
            f"{int(divides)} <= min_operand <= max_operand"
        )
    for name in ("n_test", "n_train"):
        value = getattr(config, name)
        if value is not None and value < 1:
            problems.append(f"{name} is {value}; allowed: at least 1")
    if "{problem}" not in config.prompt:
        problems.append(f"prompt is {config.prompt!r}; allowed: a text with {{problem}}")
    if problems:
        raise ConfigError("\n".join(f"benchmarks.arithmetic.params.{problem}" for problem in problems))


def shuffled(n: int, seed: int) -> Iterator[int]:
    """Yield every number of 0..n-1 exactly once, in an order that only n and the seed decide.

    A Feistel network permutes the numbers below a power of four, and what falls outside is permuted until it falls
    inside: that needs no memory, so a space of billions can be split too.
    """
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = [mix(seed, round) for round in range(_ROUNDS)]
    for number in range(n):
        index = _permute(number, half_bits, keys)
        while index >= n:
            index = _permute(index, half_bits, keys)
        yield index


def mix(*numbers: int) -> int:
    """Return 64 well-mixed bits of some integers (the finaliser of SplitMix64, applied in turn)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _permute(number: int, half_bits: int, keys: list[int]) -> int:
    mask = (1 << half_bits) - 1
    left, right = number >> half_bits, number & mask
    for key in keys:
        left, right = right, left ^ (mix(key, right) & mask)
    return left << half_bits | right
