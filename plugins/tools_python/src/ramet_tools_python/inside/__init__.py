"""The code inside the clean interpreter: zygote -> slots -> one child per program.

These modules are imported there as the top-level package `inside`, so they use the standard library and each other
only. The client imports `wire` and `scratch` from here as well.
"""
