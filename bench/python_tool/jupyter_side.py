"""A Jupyter kernel for `run.py`: for each program on standard input (a line of JSON) the seconds until it was idle.

Run by a Python that has jupyter_client and ipykernel. The first line is the time that the kernel took to start.
"""

from __future__ import annotations

import json
import sys
import time

from jupyter_client.manager import start_new_kernel


def main() -> None:
    started = time.perf_counter()
    manager, client = start_new_kernel(kernel_name="python3")
    print(time.perf_counter() - started, flush=True)
    for line in sys.stdin:
        said: list[str] = []
        began = time.perf_counter()
        client.execute_interactive(
            json.loads(line), output_hook=lambda message, said=said: said.append(message["content"].get("text", ""))
        )
        seconds = time.perf_counter() - began
        assert "".join(said).strip() == "42", said
        print(seconds, flush=True)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
