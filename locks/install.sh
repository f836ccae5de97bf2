#!/usr/bin/env bash
# Make .venv hold exactly what locks/$1.txt pins (hash-checked), plus this project in editable form.
#   locks/install.sh cpu|gpu|dev|launcher
# Needs a Python 3.13, or a uv that can fetch one, and a package index. Says what it does; repeats nothing that is done.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=locks/${1:?which lock: cpu, gpu, dev or launcher}.txt
stamp=.venv/.installed
want=$(cat "$lock" pyproject.toml | sha256sum)

say() { printf '%s\n' "install: $*" >&2; }

# Print the path of a real (not a shim's) Python 3.13 interpreter, or fail.
find_python() {
    local name
    for name in python3.13 python3 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then
            "$name" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    return 1
}

# The dev environment is a superset of cpu: `make demo` after `make test` keeps it.
if [ -f "$stamp" ]; then
    if [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi
    superset=$(cat locks/dev.txt pyproject.toml | sha256sum)
    if [ "$1" = cpu ] && [ "$(cat "$stamp")" = "$superset" ]; then exit 0; fi
fi

if [ ! -x .venv/bin/python ]; then
    if python=$(find_python); then
        say "creating .venv with $python"
        "$python" -m venv --clear .venv
    elif command -v uv >/dev/null; then
        say "creating .venv with a Python 3.13 that uv provides"
        uv venv --clear --seed --python 3.13 .venv
    else
        say "no Python 3.13 found, and no uv that could fetch one; install either and run this again"
        exit 1
    fi
fi
if [ ! -x .venv/bin/uv ]; then
    say "installing uv"
    .venv/bin/python -m pip install --quiet --require-hashes -r locks/bootstrap.txt
fi
say "installing $(grep -c == "$lock") pinned packages from $lock (about 30 s on a fast link, 6 GB for an engine)"
.venv/bin/uv pip sync --quiet --python .venv/bin/python "$lock"
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
printf '%s\n' "$want" >"$stamp"
say "done"
