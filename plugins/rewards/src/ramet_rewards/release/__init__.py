"""Scores as the ARPO and AEPO projects released them, their weaknesses included: for comparison with published runs.

Other modules of this package do not use it, so that a rule of the release is never part of a corrected reward. The
package's README lists its errors, and the corrections in `deep_research`. `tests/golden/check.py` compares every
function here with values that the released code gave.

* `deep_research`: the reward of all their training runs (`deep_research_release`).
* `maths`: the scores `math`, `math_dapo`, `gsm8k` and exact match, next to it, unused.
* `evaluation`: how their evaluation finds an answer and scores it.
"""
