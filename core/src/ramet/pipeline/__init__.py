"""`ramet pipeline`: several jobs, one after the other, each in a run directory of its own."""
