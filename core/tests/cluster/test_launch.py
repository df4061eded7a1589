"""While a run lasts, what was there before it is left out of garbage collections; afterwards all is as it was."""

from __future__ import annotations

import gc

import pytest

from ramet.cluster.launch import heap_at_rest


def test_what_was_there_before_is_frozen_until_the_end_also_of_a_failure() -> None:
    gc.unfreeze()  # whatever an engine of another test has left
    before = [object()]
    with pytest.raises(RuntimeError, match="failed"), heap_at_rest():
        during = [object()]
        tracked = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() > 1000
        assert id(before) not in tracked and id(during) in tracked
        with heap_at_rest():  # a run within a run leaves the outer one's as it is
            pass
        assert gc.get_freeze_count() > 1000
        raise RuntimeError("failed")
    assert gc.get_freeze_count() == 0
    assert id(before) in {id(one) for one in gc.get_objects()}
