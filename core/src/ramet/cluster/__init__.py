"""Backends: where rollout and policy workers run. `local` has them in this process, `ray/` in Ray's actors."""
