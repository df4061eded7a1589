"""The round schedule of the released ARPO and AEPO code, with its defects: to reproduce published runs, nothing else.

A rollout method of its own (`worker.LockstepWorker`), chosen by a branch policy that is a `policy.LockstepPolicy`.
"""
