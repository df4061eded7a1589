"""Packing of groups into micro-batches, which are shared out over ranks."""
