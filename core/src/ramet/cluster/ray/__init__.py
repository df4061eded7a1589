"""`cluster=ray`: workers are Ray actors. Only this package knows Ray; jobs see `ramet.cluster.interfaces`.

The driver holds handles and never tensors: rows, groups and metrics come and go as messages, weights travel through
Ray's object store from the policy's first rank to the engines.
"""
