#!/usr/bin/env bash
# Resolve every lock file anew from pyproject.toml: pins and hashes for Linux x86_64 and aarch64, no registry address.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header pyproject.toml "${@:2}" \
        --output-file "locks/$1.txt"
    printf '%s\n' "locks/$1.txt: $(grep -c == "locks/$1.txt") packages"
}
compile launcher
compile cpu --extra cpu
compile gpu --extra gpu
compile dev --extra cpu --extra dev
