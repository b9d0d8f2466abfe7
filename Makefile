# make serve   serve the embedded model on this machine
# make observe   start Prometheus, and Grafana if installed, for the server of make serve
# make test    run all tests except those of the whole platform, including tests with real engines
# make test-platform   run the tests of the whole platform
# make test-gpu   run the tests that need an NVIDIA GPU; without one they are skipped, with the reason
# make measure-gpu   measure all claims on one GPU: writes RESULT, and prints a short table
# make test-cluster   run the tests on the Kubernetes cluster of KUBECONFIG, with helm and kubectl
# make helm-test   lint, render and validate the Helm chart
# make helm-schema   write the chart's generated files: its schema, and facts about the package
# make fields   write the table of a deployment file's fields into deployments/README.md
# make dashboards   write the generated dashboards and rules, and their copies in the chart
# make prometheus   unpack Debian's Prometheus and promtool into the environment, unless they are installed
# make browser   install Debian's Chromium as root, unless it is installed: tests read the console with it
# make bench   measure the first table of platform/peagle/bench/README.md, with the published ratios beside it
# make check   lint, formatting and types
# make lock    resolve the pinned versions of both engines again
# make lock-check   resolve the GPU engine from its pinned versions, on any machine, without writing
# Settings: FILE=deployments/x.yaml  RESULT=bench-results/gpu.json  PORT=8000  ENGINE=cpu|gpu  PYTHON=python3.11  TESTS="tests/unit -k depth"  WORKERS=2

FILE ?= deployments/embedded.yaml
PORT ?= 8000
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TESTS ?=
RESULT ?= bench-results/gpu.json
# Test processes, each with its own core for its engines; the tests of a file, or of a platform, share a process.
WORKERS ?= 2

VENV := .venv
# The engine that the environment was built for, so that later commands keep it.
ENGINE ?= $(or $(patsubst $(VENV)/.ready-%,%,$(firstword $(wildcard $(VENV)/.ready-*))),cpu)
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(ENGINE)
PROMETHEUS := $(VENV)/prometheus

# uv ignores pip's settings, so they are passed on. Without a folder of wheels, torch comes from PyTorch's CPU index.
FIND_LINKS := $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
INDEX := UV_DEFAULT_INDEX="$(or $(UV_DEFAULT_INDEX),$(PIP_INDEX_URL))"
UV := UV_FIND_LINKS="$(FIND_LINKS)" $(INDEX) $(BIN)/uv pip
CPU_TORCH := $(if $(FIND_LINKS),,--torch-backend cpu)
ifeq ($(ENGINE),cpu)
PINS := .constraints.txt
TORCH := $(CPU_TORCH)
else
PINS := .constraints-gpu.txt
endif

.PHONY: serve observe test test-platform test-gpu measure-gpu test-cluster helm-test helm-schema fields dashboards prometheus \
  browser bench check lock lock-check clean
.DEFAULT_GOAL := serve

serve: $(READY)
	@$(BIN)/peagle serve $(FILE) --port $(PORT)

observe: $(READY) prometheus
	@$(BIN)/peagle observe --url http://127.0.0.1:$(PORT)

test: $(READY) prometheus
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile -m "not platform and not gpu and not cluster" $(TESTS)

test-platform: $(READY) prometheus browser
	@$(BIN)/python -m pytest --numprocesses 1 --dist loadfile -m platform $(TESTS)

test-gpu: $(READY)
	@$(BIN)/python -m pytest -m gpu $(or $(TESTS),tests/gpu)

measure-gpu: $(READY)
	@PYTHONPATH=platform:tests $(BIN)/python tests/gpu/measure_gpu.py $(RESULT)

test-cluster: $(READY)
	@test -n "$(KUBECONFIG)" || { echo "KUBECONFIG is empty: name the cluster whose nodes the tests may drain."; exit 1; }
	@$(BIN)/python -m pytest -m cluster -s $(or $(TESTS),tests/cluster)

helm-test: $(READY)
	@$(BIN)/python -m pytest tests/helm tests/unit/cluster $(TESTS)

helm-schema: $(READY)
	@$(BIN)/python helm/schema.py

fields: $(READY)
	@$(BIN)/python -m peagle.config.field_reference deployments/README.md

dashboards: $(READY)
	@$(BIN)/python -m dashboards.generate

# Failure is allowed: without promtool, the tests that need it are skipped with a message.
prometheus: $(READY)
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || test -x $(PROMETHEUS)/usr/bin/promtool || \
	  { mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && \
	    { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } && \
	    dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; } 2>$(VENV)/prometheus.log || \
	  echo "No Prometheus here, and none from apt-get: install it from https://prometheus.io for make observe."

# Nor is this: without Chromium the tests of the console say so.
browser: $(READY)
	@command -v chromium >/dev/null || \
	  { test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive && \
	    { apt-get install -qq --no-install-recommends chromium || \
	      { apt-get update -qq && apt-get install -qq --no-install-recommends chromium; }; }; } >$(VENV)/browser.log 2>&1 || \
	  echo "No Chromium here: as root, install the package chromium for the tests of the console."

bench: $(READY)
	@$(BIN)/peagle bench speculation deployments/embedded.yaml --baseline deployments/embedded-eagle3.yaml \
	  --methods none,p-eagle,eagle3 --depths 5,7 --concurrency 1 --prompts 24 --tokens 64 --skip-loops 0.5

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy -p dashboards

$(READY): pyproject.toml $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || \
	  { echo "peagle needs Python 3.11 or 3.12; $(PYTHON) is another. Run: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -z "$(filter-out $(READY),$(wildcard $(VENV)/.ready-*))" || \
	  { echo "The environment in $(VENV) is for another engine than $(ENGINE). Run: make clean, then this again."; exit 1; }
	@echo "Building the environment in $(VENV) (about 4 GB; a few minutes plus the download) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.12,<1'
	@$(UV) install --compile-bytecode --python $(BIN)/python $(TORCH) --constraint $(PINS) --editable '.[$(ENGINE),bench,kubernetes,observe,train,dev]'
	@touch $@
	@echo "The environment is ready."

# The GPU environment is resolved for the image's Python and platform, and prefers the versions of the CPU environment,
# because those are tested. torch is a different build; a folder of wheels would provide the CPU build.
#
# An install checks its files against these hashes. The CPU build of torch has none: its index, or a folder of wheels, has
# separate files per platform, of which uv sees only those of this platform.
EXTRAS := --extra bench --extra kubernetes --extra observe --extra train --extra dev
lock: LOCK := compile --quiet --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes \
  pyproject.toml $(EXTRAS)
lock: $(READY)
	@$(UV) $(LOCK) --python-version 3.11 --extra cpu $(CPU_TORCH) --upgrade --output-file .constraints.txt
	@awk '/^torch==/ { print $$1; hashed = 1; next } /^ / && hashed { next } { hashed = 0; print }' .constraints.txt >.constraints.tmp
	@mv .constraints.tmp .constraints.txt
	@grep -v '^torch==' .constraints.txt >.constraints-gpu.txt
	@UV_FIND_LINKS= $(INDEX) $(BIN)/uv pip $(LOCK) --extra gpu \
	  --python-version 3.12 --python-platform x86_64-unknown-linux-gnu --output-file .constraints-gpu.txt

lock-check: $(READY)
	@UV_FIND_LINKS= $(INDEX) $(BIN)/uv pip compile --quiet --no-header --no-annotate pyproject.toml --extra gpu $(EXTRAS) \
	  --constraint .constraints-gpu.txt --python-version 3.12 --python-platform x86_64-unknown-linux-gnu --no-emit-find-links \
	  >/dev/null && echo "The GPU engine resolves from .constraints-gpu.txt."

clean:
	rm -rf $(VENV)
