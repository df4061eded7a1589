#!/usr/bin/env bash
# Builds every wheel (or takes those in DIST) and proves, in fresh virtual environments, that each works with the core and what it declares alone.
#   scripts/check_wheels.sh [--built DIST] [--work DIR] [PACKAGE…] [--together PACKAGE…]
# PACKAGE: core, plugins/arpo, …; default: all
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" scripts/check_wheels "$@"
