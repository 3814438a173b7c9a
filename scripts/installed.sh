#!/usr/bin/env bash
# Installs Anabranch in an empty environment outside of the checkout, as a WHAT (wheel, sdist, or lowest: with the lowest
# versions of dependencies that pyproject.toml allows), and has a node there take and return a record. Needs PyPI.
set -euo pipefail
what=$1
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'kill "${node:-}" 2>/dev/null || true; wait; rm -rf "$place"' EXIT

"$python" -m venv "$place/env"
bin=$place/env/bin
"$bin/pip" install --quiet --disable-pip-version-check build uv
case $what in
lowest) "$bin/uv" pip install --quiet --python "$bin/python" --resolution lowest-direct . ;;
*)
    "$bin/python" -m build --"$what" --outdir "$place/dist" . >"$place/build.log" 2>&1 || { cat "$place/build.log"; exit 1; }
    "$bin/uv" pip install --quiet --python "$bin/python" "$place"/dist/*
    ;;
esac

cd "$place" # from here on the checkout is not on Python's path
"$bin/anabranch" --version
listen=()
for name in kafka ydb pravega pravega-segmentstore pipeline console sbp-pd sbp-range-server; do
    listen+=(--listen "$name=127.0.0.1:0")
done
"$bin/anabranch" serve --data data "${listen[@]}" --ready-file ready >node.log 2>&1 &
node=$!
until [ -e ready ]; do kill -0 "$node" || { cat node.log; exit 1; }; sleep 0.2; done
ANABRANCH_NODE=http://$("$bin/python" -c 'import json; print(json.load(open("ready"))["console"])')
export ANABRANCH_NODE
"$bin/anabranch" topic create flights >/dev/null
echo "AA100 has landed" | "$bin/anabranch" produce flights >/dev/null
[ "$("$bin/anabranch" consume flights --limit 1)" = "AA100 has landed" ]
echo "$what on $("$bin/python" -V): a node serves"
