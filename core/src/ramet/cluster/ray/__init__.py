"""`cluster=ray`: workers are Ray actors. Only this package knows Ray; jobs see `ramet.cluster.interfaces`.

The driver has handles and never weights: rows, groups and metrics are messages, weights go through Ray's object store
from the policy's first rank to the engines.
"""
