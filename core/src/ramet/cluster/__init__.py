"""Places: where rollout and policy workers run. `local` holds them in this process, `ray/` in Ray's actors."""
