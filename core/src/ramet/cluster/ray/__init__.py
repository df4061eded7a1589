"""`cluster=ray`: workers are Ray actors. Everything that knows Ray stands here; jobs see `ramet.cluster.place` alone.

The driver holds handles and never tensors: rows, groups and metrics come and go as messages, weights travel through
Ray's object store from the policy's first rank to the engines.
"""
