"""Ray's errors as Ramet's. How calls of workers fail is tested with real ones in `test_ray_rollouts`."""

from __future__ import annotations

import errno
import pickle

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayTaskError

from ramet.cluster.ray.worker import death_cause, translated
from ramet.io.os_errors import os_error_text


def test_an_error_of_the_system_in_an_actor_is_the_same_one_line_here():
    """As Ray brings it: pickled, and wrapped in an error of its own."""
    error = OSError(errno.ENOSPC, "No space left on device", "runs/x/model")
    wrapped = RayTaskError("export", "Traceback …", pickle.loads(pickle.dumps(error)))
    found = translated(wrapped, "policy rank 0 (node a, pid 3)")
    assert isinstance(found, OSError)
    assert os_error_text(found) == "runs/x/model: No space left on device; free some space there"


def test_a_death_is_reported_in_one_line():
    text = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 3\nThe actor is dead because "
        "its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: Task was killed due to "
        "the node running low on memory.\nMemory on the node was 15GB / 16GB. Some common causes include: (1) x"
    )
    assert death_cause(Exception(text)) == (
        "Task was killed due to the node running low on memory. Memory on the node was 15GB / 16GB."
    )
    node = (
        "The actor died unexpectedly before finishing this task.\n\tpid: 3\nThe actor died because its node has died."
    )
    assert death_cause(Exception(node)) == "The actor died because its node has died."
