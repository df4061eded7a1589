"""`ramet pipeline`: several jobs, one after the other, each in its own run directory."""
