"""From groups to packed micro-batches, shared out over ranks."""
