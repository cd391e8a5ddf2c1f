#!/usr/bin/env bash
# Makes .venv with the locked versions and both distributions installed editable.
# Owns .venv and nothing else. `make setup` calls it only when a file it depends on changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$name" -c "$new_enough" 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.11 or newer is needed: install it, or name it: make setup PYTHON=/path/to/python3" >&2
    return 1
}

if ! .venv/bin/python -c "$new_enough" 2>/dev/null || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    if ! "$python" -m venv --clear .venv; then
        echo "$python cannot make a virtual environment: on Debian or Ubuntu, apt-get install python3-venv" >&2
        exit 1
    fi
fi

# pip only fetches the installer: it takes 95 s for what uv does in 14 s on two cores.
if ! cmp --silent requirements/uv.txt .venv/uv.txt; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --requirement requirements/uv.txt
    cp requirements/uv.txt .venv/uv.txt
fi

# A mirror configured for pip serves uv too.
mirror=$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)
if [[ -z ${UV_DEFAULT_INDEX:-} && -n ${PIP_INDEX_URL:-$mirror} ]]; then
    export UV_DEFAULT_INDEX=${PIP_INDEX_URL:-$mirror}
fi
export VIRTUAL_ENV=$PWD/.venv
install=(.venv/bin/uv pip install --quiet --no-deps)
"${install[@]}" --require-hashes --requirement requirements/dev.txt
# The build backend is locked as well, so building the two editable wheels fetches nothing.
"${install[@]}" --exact --no-build-isolation --requirement requirements/dev.txt --editable . --editable sdk
