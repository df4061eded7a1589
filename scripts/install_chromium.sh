#!/usr/bin/env bash
# Install Debian's headless Chromium for the report's tests, where this user may; otherwise say so and fail.
set -euo pipefail
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "no headless Chromium, and this user may not install it: the browser tests will be skipped" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
