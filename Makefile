# Targets set up what they need and may be run again and again.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JARS := $(VENV)/.jars
CLASSES := $(VENV)/.spark-classes.jsa
TEST_WORKERS ?= 3
INTEROP_WORKERS ?= 3
EVIDENCE ?= $(shell grep -rl --include='test_*.py' '^from tests.suite.evidence import' tests)
TIMES ?= tests/fault tests/integration tests/unit
ROUNDS ?= 10
BUSY ?= 8
AT_ONCE ?= 1
ROUNDS_OF ?= tests/fault tests/integration tests/unit
# A wrong number is reported before make builds anything.
define check_number
$(if $(filter file,$(origin $(1))),,$(if $(shell echo '$($(1))' | grep -xE '$(2)'),,$(error $(1)=$($(1)): $(3) is wanted)))
endef
$(foreach each,TEST_WORKERS INTEROP_WORKERS,$(call check_number,$(each),[0-9]+|auto,a whole number or auto))
$(foreach each,ROUNDS AT_ONCE,$(call check_number,$(each),0*[1-9][0-9]*,a whole number above 0))
$(call check_number,BUSY,[0-9]+,a whole number)
# Where it is set, each process compiles every module that it imports anew: half of what a broker's start costs.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java demo docs test check interop bench evidence rounds defects clean evidence-due test-times

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml hatch_build.py $(shell find proto -name '*.proto')
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing into $(VENV): 2.6 GB with Spark and what the tests need, some minutes"
	@$(BIN)/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip uv
	@# one that was broken off left half of a package, which counts as installed
	@rm -f $@; $(BIN)/python -m uv pip install --quiet $(if $(wildcard $@),,--reinstall) --compile-bytecode --python $(BIN)/python --editable '.[dev]' || { \
		echo "uv could not install it; pip tries, which has settings of its own for mirrors and certificates" >&2; \
		$(BIN)/python -m pip install --quiet $(if $(wildcard $@),,--force-reinstall) --editable '.[dev]'; }
	@$(BIN)/python -m compileall -q broker_gateway store structured_streaming lakebroker_testing demo tests/support tests/suite
	@touch $@

$(JARS): $(READY) | java
	@echo "Compiling the code of sends, receives and scans, once"
	@$(BIN)/python -c 'from broker_gateway.api.grpc import receive_columns; from broker_gateway.api.grpc.kernels import send_walk; from store import scan; from store.kernels import encode; send_walk.warm(); receive_columns.ReceiveColumns(); encode.warm(); scan.warm()'
	@echo "Fetching Delta's jars for Spark"
	@$(BIN)/python -c 'from structured_streaming.sql import delta_session; delta_session().stop()' >$(VENV)/jars.log 2>&1 || { cat $(VENV)/jars.log >&2; exit 1; }
	@touch $@

$(CLASSES): $(JARS) tests/support/spark/jvm.py
	@$(BIN)/python -W ignore -c 'from hypothesis import strategies; strategies.text().example()' # it keeps its table of characters, else each worker makes one
	@echo "Keeping Spark's classes as its JVM loads them"
	@$(BIN)/python -m tests.support.spark.jvm >$(VENV)/classes.log 2>&1 || { cat $(VENV)/classes.log >&2; exit 1; }
	@touch $@

java:
	@java -version 2>&1 | grep -Eq 'version "(1[7-9]|2[0-9])' || { echo "A JDK 17 or later is needed on the PATH: Spark runs on it" >&2; exit 1; }

setup: java $(CLASSES) ## Make the virtual environment, fetch Delta's jars, prepare the tests' JVMs

demo: java $(JARS) ## Run the whole system on this machine and ask it questions in SQL (KEEP=1: go on, with a page to look at)
	@echo "Running the demo"
	@$(BIN)/python -m demo.run $(if $(KEEP),--keep)

docs: $(READY) ## Build the documents as a site, into build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html; its search wants a server (python -m http.server -d build/site)"

test: $(CLASSES) ## Run the tests: unit, integration with Spark and the official client, crashes
	@echo "Running the tests with $(TEST_WORKERS) workers, the files that use Spark first"
	@$(BIN)/python -m pytest -p tests.suite.patience -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder tests/fault tests/integration tests/unit

check: $(READY) ## Lint, format check, types, who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

interop: $(CLASSES) ## Compare and talk with RocketMQ's official programs (fetched from their registries)
	@echo "Running the tests beside RocketMQ's own programs with $(INTEROP_WORKERS) workers, the longest files first"
	@$(BIN)/python -m pytest -p tests.suite.patience -n $(INTEROP_WORKERS) --dist loadfile --no-loadscope-reorder tests/interop

bench: $(JARS) ## Measure beside the real RocketMQ: sending, receiving, the reput (needs Go and Maven)
	@echo "Measuring the store, starts, the data plane, the reput, commits, planning, freshness, many batches, many topics, timers, interactive SQL, a simulated day"
	@$(BIN)/python -m benchmarks.store
	@$(BIN)/python -m benchmarks.start
	@$(BIN)/python -m benchmarks.data_plane
	@$(BIN)/python -m benchmarks.reput
	@$(BIN)/python -m benchmarks.lake_commits
	@$(BIN)/python -m benchmarks.planning
	@$(BIN)/python -m benchmarks.freshness
	@$(BIN)/python -m benchmarks.many_batches
	@$(BIN)/python -m benchmarks.many_topics --topics 10000 --records 100000
	@$(BIN)/python -m benchmarks.timers
	@$(BIN)/python -m benchmarks.interactive_sql
	@$(BIN)/python -m benchmarks.simulated_day --batches 1000 --start 200 --job 20 --kept 60

evidence: $(CLASSES) ## Run the long forms of tests; takes hours (a part: EVIDENCE=tests/fault/test_soak.py)
	@echo "Running the long tests; what they did goes to docs/evidence"
	@LAKEBROKER_EVIDENCE=1 LAKEBROKER_FUZZ_KEEP=$(CURDIR)/tests/fuzz/corpus $(BIN)/python -m pytest -p tests.suite.outcomes --outcomes docs/evidence/faults.json --timeout 7200 -o faulthandler_timeout=20000 $(EVIDENCE)

evidence-due: $(READY) ## Say which parts of the evidence are older than the code they cover
	@$(BIN)/python -m tests.suite.evidence_due

test-times: $(CLASSES) ## Run the tests and print where the time goes: CPU seconds, seconds waited, the dearest hundred (TIMES=tests/unit)
	@echo "Running $(TIMES) with $(TEST_WORKERS) workers; the costs go to build/test-times.json"
	@$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -p tests.suite.costs --costs build/test-times.json $(TIMES); \
	status=$$?; [ $$status -le 1 ] || exit $$status; $(BIN)/python -m tests.suite.costs build/test-times.json && exit $$status

rounds: $(CLASSES) ## Run tests again and again beside busy processes, with limits that grow with these, and record each (ROUNDS=10 BUSY=8 AT_ONCE=1 ROUNDS_OF=tests/interop)
	@echo "Running the tests $(ROUNDS) times, $(AT_ONCE) at once, beside $(BUSY) busy processes"
	@$(BIN)/python -m tests.suite.rounds --rounds $(ROUNDS) --busy $(BUSY) --at-once $(AT_ONCE) --workers $(TEST_WORKERS) --record docs/evidence/rounds.jsonl -- $(ROUNDS_OF)

defects: $(CLASSES) ## Put defects into a copy of the tree, one at a time, and see which tests find them
	@$(BIN)/python -m tests.suite.defects --record docs/evidence/defects.jsonl

clean: ## Remove what was built
	rm -rf $(VENV) .cache lakebroker_pb demo-output build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
