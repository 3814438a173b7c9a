#!/usr/bin/env bash
# Creates the virtual environment DIRECTORY (first argument) with the Python named by $PYTHON (default python3).
# A bare Debian has no ensurepip, maybe no Python at all: as root the missing packages are installed, otherwise named.
set -euo pipefail
directory=$1
python=${PYTHON:-python3}

need_packages() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing: $*"
        apt-get update -q >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
    else
        echo "Python's venv module is incomplete here. Please install it, e.g.: sudo apt-get install $*" >&2
        exit 1
    fi
}

command -v "$python" >/dev/null || need_packages python3 python3-venv
"$python" -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Anabranch needs Python 3.11 or newer; $python is $("$python" -V). Set PYTHON=/path/to/python3.11." >&2
    exit 1
}
[ -x "$directory/bin/python" ] || "$python" -m venv "$directory"
