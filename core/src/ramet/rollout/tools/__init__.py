"""How tools are called: time-outs, retries, concurrency, arguments and text limits."""
