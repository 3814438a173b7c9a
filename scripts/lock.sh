#!/usr/bin/env bash
# Writes requirements/{run,cluster,spark,dev}.lock from pyproject.toml: every version pinned, every file hashed, for Python
# >= 3.11. run.lock is what a node needs; cluster.lock adds what one of several needs, spark.lock the data pipeline's, dev.lock
# what `make test` needs; versions are the same.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
compile() { # OUTPUT, then further arguments
    local output=$1
    shift
    "$uv" pip compile --quiet pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --output-file "$output" ${UPGRADE:+--upgrade} "$@"
}
mkdir -p requirements
# setuptools is the build backend of the editable install, which runs without build isolation: so it is locked too.
compile requirements/run.lock --extra build --extra oauth
compile requirements/cluster.lock --extra build --extra cluster --extra oauth --extra schemas \
    --constraints requirements/run.lock
compile requirements/spark.lock --extra build --extra spark --constraints requirements/run.lock
compile requirements/dev.lock --extra build --extra cluster --extra dev --extra oauth --extra schemas --extra spark \
    --constraints requirements/spark.lock --constraints requirements/cluster.lock
for toolchain in go node; do
    "$uv" pip compile --quiet requirements/$toolchain.in --generate-hashes --no-header --no-emit-index-url \
        -o requirements/$toolchain.lock
done
for other in spark-connector faust; do
    "$uv" pip compile --quiet requirements/$other.in --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --output-file requirements/$other.lock
done
"$uv" pip compile --quiet requirements/fuzz.in --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --output-file requirements/fuzz.lock ${UPGRADE:+--upgrade}
# The load generator of compose/, the README's examples and tests of Kerberos, with the versions that tests have.
for clients in load examples kerberos; do
    "$uv" pip compile --quiet requirements/$clients.in --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --constraints requirements/dev.lock --output-file requirements/$clients.lock
done
