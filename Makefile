# Everything here starts from a clean clone: each target sets up what it needs, and the second run finds it done.
# ARGS=... goes to the script behind a target (make torture ARGS='--cycles 3'), PYTEST=... to pytest, which runs
# tests in WORKERS=... processes at the same time.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
PYTEST ?=
WORKERS ?= $(shell echo $$(( $$(nproc) + 2 )))
ARGS ?=
FUZZ_SECONDS ?= 300

.PHONY: serve test test-all lint types unit thorough lock matrix console-hour demo torture soak hostile bench bench-sbp bench-pravega bench-ydb bench-across bench-spark bench-cluster bench-compaction compat-librdkafka compat-kafka-python compat-kafka-tests compat-ydb-python compat-pravega compat-spark-connector ecosystem fuzz spark-proof compose-test setup installed lowest image clean help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

serve: $(VENV)/.run  ## a node with every front on its default port, data in ./data
	$(BIN)/anabranch serve --data $(DATA)

# Beside the linter and the types: programs of other languages are built, and the tests' modules are compiled, once for
# all processes that will run them.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev  ## linter, formatter, types and all tests, but for those that take long
	$(BUILD) & $(BIN)/pytest --collect-only --quiet >/dev/null & $(MAKE) lint types
	$(MAKE) unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Most tests wait for processes and disks, so several run at the same time, those of a file one after the other: two more
# than there are processors, at most four, each with nodes of its own. WORKERS=0: all in one process, as plain pytest does.
# Hundreds of nodes are started: they need not compile our modules each time, whatever the environment says.
BESIDE := -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Some tests with foreign clients and kills still depend on what else the machine does: what failed is named, and has to
# pass by itself. It goes once whole runs pass without it; until then each name is a fault to find.
AGAIN := echo "once more, by itself, what failed:" && $(BIN)/pytest -n 0 --last-failed --last-failed-no-failures none
# Programs of other languages are built beside the tests, which wait for those that they need.
BUILD = nice $(BIN)/python -m tests.build_drivers
unit: export PYTHONDONTWRITEBYTECODE :=
unit: $(VENV)/.dev
	$(if $(PYTEST),,$(BUILD) &) \
	$(BIN)/pytest $(BESIDE) $(PYTEST) || { [ $$? = 1 ] && $(AGAIN); }

test-all: export PYTHONDONTWRITEBYTECODE :=
test-all: $(VENV)/.dev  ## in addition to `make test`: tests that take long and look once more at what that protects
	$(if $(PYTEST),,$(BUILD) --long &) \
	$(BIN)/pytest $(BESIDE) -m long --timeout=900 $(PYTEST) || { [ $$? = 1 ] && $(AGAIN) -m long; }

EVERY := 'not compose and not matrix and not hour'
thorough: export PYTHONDONTWRITEBYTECODE :=
thorough: $(VENV)/.dev  ## all tests, and those that draw what they try look twenty times as far: for a night
	ANBR_POWER_IMAGES=15000 $(BIN)/pytest $(BESIDE) -m $(EVERY) --hypothesis-profile=thorough --timeout=36000 $(PYTEST)

setup: $(VENV)/.examples  ## the clients of the README's examples, in the virtual environment

installed: ## the wheel and the sdist, each installed in an empty environment elsewhere, serving
	PYTHON=$(PYTHON) scripts/installed.sh wheel
	PYTHON=$(PYTHON) scripts/installed.sh sdist

lowest: ## a node with the lowest versions of its dependencies
	PYTHON=$(PYTHON) scripts/installed.sh lowest

image: ## the container image of a node: needs Docker
	docker build --file compose/image/Dockerfile --build-arg COMMIT=$$(git rev-parse HEAD) --tag anabranch .

matrix: $(VENV)/.dev  ## what every client writes, read by every other, with all that happens in between; ARGS=write: into the docs
	$(if $(filter write,$(ARGS)),ANBR_MATRIX=write) $(BIN)/pytest -n 0 -m '' --timeout=900 tests/matrix $(PYTEST)

console-hour: $(VENV)/.dev  ## the console's page open for an hour: its memory, and what it costs the node; MINUTES=60
	ANBR_CONSOLE_MINUTES=$(or $(MINUTES),60) $(BIN)/pytest -n 0 -m hour tests/bridges/console $(PYTEST)

demo: $(VENV)/.dev  ## 336,776 flights through the clients of three protocols, compared record by record
	$(BIN)/python -m benchmarks.demo $(ARGS)

torture: $(VENV)/.dev  ## kill -9 under load, over and over: no promise may be broken
	$(BIN)/python -m tests.torture.run $(ARGS)
	$(BIN)/python -m tests.torture.mixed

soak: $(VENV)/.dev  ## clients of all protocols on one topic for an hour, and nothing may happen; ARGS="--minutes 60 --deployment one|workers|cluster"
	$(BIN)/python -m tests.soak.run $(ARGS)

hostile: $(VENV)/.dev  ## everything a client should not do, on every listener, beside clients that behave
	$(BIN)/python tests/hostile/run.py $(ARGS)

bench: $(VENV)/.dev  ## measure the node, and Apache Kafka on the same machine
	$(BIN)/python -m benchmarks $(ARGS)
	$(MAKE) bench-across ARGS=$(filter --quick,$(ARGS))

bench-across: $(VENV)/.dev  ## measure protocols reading what others wrote, and what slow readers cost writers
	$(BIN)/python -m benchmarks.across $(ARGS)

bench-sbp: $(VENV)/.dev  ## measure the SBP backend beside the raw disk
	$(BIN)/python -m benchmarks.sbp $(ARGS)

spark-proof: $(VENV)/.dev  ## the data pipeline killed at every step, clusters of Spark, the examples of docs/spark.md; takes long
	$(BIN)/python -m tests.spark_proof.sink_kills
	$(BIN)/python -m tests.spark_proof.stream_copy
	$(BIN)/python -m tests.spark_proof.clusters
	$(BIN)/python -m tests.spark_proof.prove_migration
	$(BIN)/python -m tests.spark_proof.prove_streams
	$(BIN)/python -m tests.spark_proof.examples
	$(BIN)/python -m tests.spark_proof.connector

compose-test: $(VENV)/.dev  ## the files of compose/, started for real: needs Docker
	$(BIN)/pytest -n 0 -m compose tests/compose $(PYTEST)

bench-pravega: $(VENV)/.dev  ## measure Pravega's clients on the node, and on Pravega on the same machine
	$(BIN)/python -m benchmarks.pravega $(ARGS)

bench-ydb: $(VENV)/.dev  ## measure StreamWrite and StreamRead beside a bare gRPC server
	$(BIN)/python -m benchmarks.ydb $(ARGS)

bench-cluster: $(VENV)/.dev  ## one node as one process and as two; ARGS=--objects, --database, "--partitions N": over object storage, what nodes ask of PostgreSQL, very many partitions
	$(BIN)/python -m benchmarks.cluster $(ARGS)

bench-compaction: $(VENV)/.dev  ## measure what compaction costs producers beside it
	$(BIN)/python -m benchmarks.compaction $(ARGS)

bench-spark: $(VENV)/.dev  ## measure Spark's source, sink and bulk copies beside its own connector, and Apache Kafka
	$(BIN)/python -m benchmarks.spark $(ARGS)

compat-librdkafka: $(VENV)/.dev  ## librdkafka's own test suite against a node
	$(BIN)/python tests/compat/librdkafka/run.py $(ARGS)

compat-kafka-python: $(VENV)/.dev  ## kafka-python's own integration tests against a node
	$(BIN)/python tests/compat/kafka_python/run.py $(ARGS)

compat-kafka-tests: $(VENV)/.dev  ## Apache Kafka's own integration tests against nodes; ARGS='--only CLASS'
	$(BIN)/python tests/compat/kafka_tests/run.py $(ARGS)

compat-ydb-python: $(VENV)/.dev  ## the topic tests of YDB's SDK for Python against a node
	$(BIN)/python tests/compat/ydb_python/run.py $(ARGS)

compat-pravega: $(VENV)/.dev  ## the tests of Pravega's wheel and Java client against a real Pravega
	$(BIN)/python tests/compat/pravega/run.py $(ARGS)
compat-spark-connector: $(VENV)/.dev  ## Spark's own connector for Kafka against a node, and beside our source
	$(BIN)/python -m tests.spark_proof.connector $(ARGS)

ecosystem: $(VENV)/.dev  ## Kafka Streams, Connect, Flink and others against a node, as their users run them
	$(BIN)/python -m tests.ecosystem.run $(ARGS)

fuzz: $(VENV)/.fuzz  ## coverage-guided fuzzing of the Kafka, Pravega, YDB, record and SBP decoders, FUZZ_SECONDS each
	for target in kafka_wire pravega ydb records sbp_frames; do \
		mkdir -p build/fuzz-$$target && \
		PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_$$target.py --seeds build/fuzz-$$target && \
		PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_$$target.py -max_total_time=$(FUZZ_SECONDS) build/fuzz-$$target \
		|| exit 1; \
	done

lock: $(VENV)/.dev  ## write the lock files anew from pyproject.toml (UPGRADE=1 takes the newest versions)
	UV=$(BIN)/uv UPGRADE=$(UPGRADE) scripts/lock.sh

clean:  ## forget everything that was built (not the data)
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache *.egg-info

# The stamps stand for "this lock file is installed in this environment".
$(BIN)/python:
	PYTHON=$(PYTHON) scripts/make-venv.sh $(VENV)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.examples: requirements/examples.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/examples.lock
	@touch $@

# gssapi is built: where MIT Kerberos is not, tests that need it skip.
$(VENV)/.dev: requirements/dev.lock requirements/kerberos.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	! command -v krb5-config >/dev/null || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/kerberos.lock
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.lock $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.lock
	@touch $@
