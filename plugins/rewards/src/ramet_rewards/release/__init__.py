"""Scores as the ARPO and AEPO projects released them, their weaknesses included: for comparison with published runs.

Nothing else of this package uses this, so that a rule of the release is never part of a corrected reward. What is wrong
with it, and what `deep_research` does instead, is in the package's README. `tests/golden/check.py` compares every
function here with values that the released code gave.

* `deep_research`: the reward of all their training runs (`deep_research_release`).
* `maths`: the scores `math`, `math_dapo`, `gsm8k` and exact match, which lie beside it unused.
* `evaluation`: how their evaluation finds an answer and scores it.
"""
