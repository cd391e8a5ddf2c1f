# Every command of this repository; CONTRIBUTING.md explains each. Results go to out/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

READY := .venv/ready
BIN := .venv/bin
# Folders that hold Python in this checkout.
FOLDERS := bench chaos compose examples planning sdk/tidemill services simulation statemachines tests tools
CODE := $(foreach folder,$(wildcard $(FOLDERS)),$(if $(shell find $(folder) -name '*.py' -print -quit),$(folder)))
DIAGRAMS := $(wildcard statemachines/diagrams.py)
# Percent: the house rule for the pure layers.
COVERAGE_FLOOR := 100
ARGS ?=

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Make .venv with both distributions installed; every other command implies it

$(READY): pyproject.toml sdk/pyproject.toml requirements/dev.txt requirements/uv.txt tools/setup.sh
	@tools/setup.sh
	@touch $@

.PHONY: demo
demo: $(READY) ## The main job on a cell of this machine: a node and the leader die, the weights come out the same
	@$(BIN)/python -m services.demo

.PHONY: demo-distributed
demo-distributed: $(READY) ## The same on 3 real Kafka brokers and 3 etcd members, one of each killed as well
	@$(BIN)/python -m services.demo --distributed

.PHONY: stack
stack: $(READY) ## Start 3 real Kafka brokers and 3 etcd members on loopback; ARGS="--brokers 1"
	@$(BIN)/python -m compose.local.stack up $(ARGS)

.PHONY: stack-down
stack-down: $(READY) ## End them; ARGS=--wipe deletes their data
	@$(BIN)/python -m compose.local.stack down $(ARGS)

.PHONY: bench
bench: $(READY) ## Every benchmark; ARGS="fold --scale small" runs one. Results go to out/bench/
	@mkdir -p out/bench
	@if [ -n "$(ARGS)" ]; then $(BIN)/python -m bench $(ARGS); \
	else for name in $$($(BIN)/python -m bench list | awk '{print $$1}'); do \
		echo "== $$name" >&2; $(BIN)/python -m bench $$name --json out/bench/$$name.json; done; fi

.PHONY: test
test: $(READY) ## Run the tests; ARGS="tests/meta -x" narrows them, CI=true allows no skip of a real service
	@$(BIN)/pytest $(ARGS)

# Histories of `make chaos`; each is a seed.
SEEDS ?= 10000
# So many reach every rare state.
REACH := $(if $(filter-out 10000,$(SEEDS)),,--reach-all)

.PHONY: chaos
chaos: $(READY) ## A hostile world: SEEDS=10000 histories, every scenario, every planted bug, then live processes. Results go to out/chaos/
	@mkdir -p out/chaos
	@$(BIN)/python -m chaos sim --seeds $(SEEDS) $(REACH) --json out/chaos/anything.json --report out/chaos/anything.html
	@for name in $$($(BIN)/python -m chaos list | awk '$$1 != "anything" && !/\[only live\]$$/ { print $$1 }'); do \
		echo "== $$name" >&2; $(BIN)/python -m chaos sim $$name --seeds 20 --json out/chaos/$$name.json; done
	@$(BIN)/python -m chaos bugs --json out/chaos/bugs.json
	@for name in $$($(BIN)/python -m chaos list | awk '/\[(only )?live\]$$/ { print $$1 }'); do \
		echo "== $$name, live" >&2; $(BIN)/python -m chaos live $$name --json out/chaos/live-$$name.json --report out/chaos/live-$$name.html || { \
		test $$? = 2; test "$${CI:-}" != true; echo "== $$name, live: SKIPPED, this machine cannot play it" >&2; }; done
	@TIDEMILL_LONG=1 $(BIN)/pytest -q -s tests/live_kafka

.PHONY: coverage
coverage: $(READY) ## Branch coverage of the pure layers by their own tests, held at 100 %
	@$(BIN)/coverage run --source=planning,statemachines -m pytest -q $(wildcard tests/planning tests/statemachines)
	@$(BIN)/coverage report --fail-under=$(COVERAGE_FLOOR)

.PHONY: check
check: $(READY) ## Format, lint, types, import rules, wire contract, and that nothing generated is stale
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/baseline.binpb
	$(BIN)/python -m tools.protos check
	$(BIN)/python -m tools.lock check
	$(if $(DIAGRAMS),$(BIN)/python -m statemachines.diagrams --check)

.PHONY: format
format: $(READY) ## Rewrite Python files in the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: proto
proto: $(READY) ## Generate sdk/tidemill/v1 and the page of facts from protos/
	$(BIN)/python -m tools.protos generate
	$(BIN)/python -m tools.facts_reference > docs/reference/facts.md

.PHONY: proto-baseline
proto-baseline: $(READY) ## At a release: make today's protos what later ones must not break
	$(BIN)/python -m tools.protos baseline

.PHONY: lock
lock: $(READY) ## Resolve the dependencies again; ARGS=--upgrade takes the newest that fit
	$(BIN)/python -m tools.lock write $(ARGS)
