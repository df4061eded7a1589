"""`ramet doctor`: what of this machine and its keys does not work, and how to mend it."""
