"""`ramet doctor`: checks of this machine, its packages and its API keys, with a fix for each problem."""
