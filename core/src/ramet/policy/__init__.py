"""The policy's side of a step: rows from groups, packing, the worker that trains, and verified checkpoints."""
