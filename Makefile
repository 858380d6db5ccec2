# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# `make help` lists what can be made. Everything that is made stays in .venv*, .lab and .cache, except Debian packages and
# the containers and images named openfleet-*; `make clean` removes these too, but for the packages.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# --- Settings: in the environment or on the command line ------------------------------------------------------------

# Which fleet of this machine: containers are named openfleet-$(OPENFLEET_LAB)-HOST.
export OPENFLEET_LAB ?= demo
# The base image of the lab hosts; see tests/lab/image/build.
export LAB_RELEASE ?= bookworm
export LAB_MIRROR LAB_BASE_IMAGE
# Of the images of the demo, the one that is made last.
lab_image := localhost/openfleet-lab:$(LAB_RELEASE)-monitoring
# The Python of .venv: ansible-core 2.19 runs on 3.11 to 3.13.
PYTHON := $(or $(PYTHON),$(shell tests/lab/find-python first 3.11 3.13))
# The Python of .venv-newest, for the leg of `make test` on the newest ansible-core.
NEWEST_PYTHON := $(or $(NEWEST_PYTHON),$(shell tests/lab/find-python newest 3.12))
# The oldest Python that code on hosts supports, for a leg of `make test`.
OLDEST_PYTHON := $(or $(OLDEST_PYTHON),$(shell tests/lab/find-python first 3.8 3.8))
export PYTHON NEWEST_PYTHON OLDEST_PYTHON
# The group of figures that `make bench` prints; all if empty.
BENCH ?=

# --- Nothing is written outside the checkout ------------------------------------------------------------------------

export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.lab/bin:$(PATH)
$(shell mkdir -p .cache/tmp)
export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export ANSIBLE_HOME := $(CURDIR)/.cache/ansible
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
export PYTEST_DEBUG_TEMPROOT := $(CURDIR)/.cache/tmp
export RUFF_CACHE_DIR := $(CURDIR)/.cache/ruff

# --- Stamps: a virtual environment is made anew when its requirements or its Python change --------------------------

checksum = $(shell { cat $(1); echo '$(2)'; } | sha256sum | cut -c 1-12)
venv_stamp := .venv/.made-$(call checksum,requirements.txt,$(PYTHON))
venv_test_stamp := .venv/.made-test-$(call checksum,requirements.txt requirements-bundle.txt requirements-rightsize.txt requirements-unit.txt requirements-test.txt,$(PYTHON))
venv_newest_stamp := .venv-newest/.made-$(call checksum,requirements-bundle.txt requirements-rightsize.txt requirements-unit.txt requirements-newest.txt,$(NEWEST_PYTHON))

# Ubuntu's chromium only fetches a snap, which cannot be driven from here: there the tests of the pages are skipped.
test_packages := gcc gnupg libc6-dev make openssl $(if $(shell grep -sx ID=debian /etc/os-release),chromium)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# --- Setting up -----------------------------------------------------------------------------------------------------

# ensurepip is missing where the distribution splits it off into a package of its own.
venv_package = $(shell $(1) -c 'import ensurepip' 2>/dev/null || $(1) -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')

.PHONY: packages packages-test
packages: require-python
	@tests/lab/prepare $(call venv_package,$(PYTHON))

packages-test: require-python
	@tests/lab/prepare $(call venv_package,$(PYTHON)) $(if $(NEWEST_PYTHON),$(call venv_package,$(NEWEST_PYTHON))) $(test_packages)

.PHONY: require-python
require-python:
	@[ -n "$(PYTHON)" ] || { echo 'make: no Python 3.11, 3.12 or 3.13 found: install one (apt-get install python3), or name one with PYTHON=' >&2; exit 1; }

$(venv_stamp):
	@echo 'venv: .venv with $(PYTHON)'
	rm -rf .venv && mkdir -p .cache
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -qq --no-compile --requirement requirements.txt
	touch $@

$(venv_test_stamp): $(venv_stamp)
	@echo 'venv: test tools into .venv'
	.venv/bin/pip install -qq --no-compile --requirement requirements-test.txt
	touch $@

$(venv_newest_stamp):
	@echo 'venv: .venv-newest with $(NEWEST_PYTHON)'
	rm -rf .venv-newest && mkdir -p .cache
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install -qq --no-compile --requirement requirements-newest.txt
	touch $@

.PHONY: image
image:
	@flock .lab/image.lock tests/lab/image/build # one at a time: all builds use the same directory

# What one of the tests needs besides: the base image with Debian's Slurm.
.PHONY: image-slurm
image-slurm: packages
	@flock .lab/image.lock tests/lab/image/build slurm

# The same with an engine for clients of MPS in containers.
.PHONY: image-sharing
image-sharing: packages
	@flock .lab/image.lock tests/lab/image/build sharing

# With Prometheus and Alertmanager, for the host that watches the others. The base image is made on the way.
.PHONY: image-monitoring
image-monitoring:
	@flock .lab/image.lock tests/lab/image/build monitoring

# Debian's Prometheus and Alertmanager, unpacked and never installed here, which would start them.
prometheus_stamp := .lab/prometheus/.made-$(call checksum,tests/lab/fetch-prometheus)
$(prometheus_stamp):
	@tests/lab/fetch-prometheus
	touch $@

.PHONY: prometheus-tools
prometheus-tools: $(prometheus_stamp)

# From their source, after a change of it; a test says when that was forgotten.
.PHONY: dashboards
dashboards: $(venv_test_stamp) ## write the Grafana dashboards anew
	.venv/bin/python roles/gpu_monitoring/dashboards/build.py

.PHONY: setup setup-test
setup: packages ## all that a run needs: Debian packages, virtual environment, images
	@$(MAKE) -s -j2 $(venv_stamp) image-monitoring

setup-test: packages-test
	@$(MAKE) -s -j2 $(venv_test_stamp) image-monitoring

# --- The main job ---------------------------------------------------------------------------------------------------

.PHONY: demo
demo: ## start the simulated fleet, run site.yml on it twice, audit it, show what came of it
	@started=$$(date +%s.%N)
	there=$$(ls $(venv_stamp) 2>/dev/null | wc -l)$$(.lab/bin/podman image exists $(lab_image) 2>/dev/null && echo 1 || echo 0)
	case $$there in 00) temperature=cold ;; 11) temperature=warm ;; *) temperature=partly ;; esac
	$(MAKE) setup
	# Right-sizing asks for NumPy, and packs without OR-Tools, which is large.
	.venv/bin/python -c 'import numpy' 2>/dev/null || .venv/bin/pip install -qq --no-compile "$$(grep ^numpy requirements-rightsize.txt)"
	OPENFLEET_LAB=demo .venv/bin/python tests/lab/demo.py --started "$$started" --temperature "$$temperature"

# What a site without a network needs for the hosts of INVENTORY, into BUNDLE_DIR.
.PHONY: bundle
bundle: $(venv_stamp) ## collect it: INVENTORY=hosts.yml BUNDLE_DIR=/srv/bundle [BUNDLE_OPTIONS=--check]
	@[ -n "$(INVENTORY)" ] && [ -n "$(BUNDLE_DIR)" ] || { echo 'make: name the inventory and the folder: make bundle INVENTORY=hosts.yml BUNDLE_DIR=/srv/bundle' >&2; exit 1; }
	.venv/bin/pip install -qq --no-compile --requirement requirements-bundle.txt
	ansible-playbook -i $(INVENTORY) playbooks/bundle.yml -e gpu_bundle_requirements=$(CURDIR)/requirements.txt -e gpu_bundle_dir=$(abspath $(BUNDLE_DIR)) $(BUNDLE_OPTIONS)

# --- Tests and figures ----------------------------------------------------------------------------------------------

# Partitioning GPUs needs root, on the simulator too; what root writes stays apart from what others must be able to write.
ifneq ($(shell id -u),0)
as_root := sudo -n env "PATH=$(PATH)" PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS='-p no:cacheprovider' \
    ANSIBLE_CONFIG=$(ANSIBLE_CONFIG) ANSIBLE_HOME=$(CURDIR)/.cache/root/ansible XDG_CACHE_HOME=$(CURDIR)/.cache/root \
    HYPOTHESIS_STORAGE_DIRECTORY=$(CURDIR)/.cache/root/hypothesis PYTEST_DEBUG_TEMPROOT=$(PYTEST_DEBUG_TEMPROOT)
endif

# As root, and with no process in sight but those of the tests themselves: modules look through /proc for who holds a GPU, and
# would take a container of the lab that was given one, in another leg of the same tests, for a holder of the simulated ones.
# The first process of the namespace reaps what others leave behind.
apart := $(as_root) unshare --pid --fork --kill-child --mount-proc bash -c '"$$@"; exit $$?' --

# One leg of the tests: says what it is and how long it took, so that a log can be read. One that fails keeps no other from being
# run; a recipe of legs ends with `every_leg_passed`.
leg = printf '\n=== %s\n' "$(1)"; started=$$SECONDS; word=---; { $(2); } || { word='!!! failed:'; failed=yes; }; \
    printf -- '%s %s: %s s\n' "$$word" "$(1)" $$((SECONDS - started))
every_leg_passed = [ -z "$${failed-}" ]

# Two halves side by side, for two cores: the simulated fleet under molecule, whose lines begin with `hosts |`, which waits for
# its hosts most of the time, and all else. Each is run to its end, whatever fails in it, and the end of every leg that failed is
# repeated last, for whoever sees only that of a log.
.PHONY: test
test: ## every test: lint, unit, integration, the fleet under molecule
	@$(MAKE) setup-test
	mkdir -p .cache/test
	half() { $(MAKE) --keep-going "$${@:2}" 2>&1 | tee .cache/test/$$1.log || { echo $$1 >>.cache/test/failed; false; }; }
	: >.cache/test/failed
	half hosts test-fleet | sed --unbuffered 's/^/hosts | /' & hosts=$$!
	half here lint-all test-unit test-limiter test-monitoring test-integration test-newest test-oldest test-packages || true
	wait $$hosts || true
	for half in $$(cat .cache/test/failed); do printf '\n=== again from .cache/test/%s.log:\n' $$half; grep -B 60 '^!!! failed:' .cache/test/$$half.log || tail -n 60 .cache/test/$$half.log; done
	[ ! -s .cache/test/failed ] || { printf '\nTests failed, see above; %s s.\n' "$$SECONDS"; exit 1; }
	printf '\nEvery test passed in %s s.\n' "$$SECONDS"

.PHONY: test-fast
test-fast: $(venv_test_stamp) ## the minute between edits: ruff and the unit tests
	@$(call leg,ruff,ruff check --quiet)
	$(call leg,unit tests,pytest --quiet tests/unit)
	$(every_leg_passed)

.PHONY: lint lint-all
lint: setup-test lint-all ## ruff, yamllint, ansible-lint (production profile), antsibull-changelog

lint-all:
	@$(call leg,ruff,ruff check)
	$(call leg,yamllint,yamllint --strict .)
	$(call leg,ansible-lint,ansible-lint -q)
	$(call leg,antsibull-changelog,antsibull-changelog lint)
	$(every_leg_passed)

# The tests at (2) by the pytest (1), of those the ones that (3) leaves: on all cores, and then those that must be alone.
on_all_cores = $(1) --quiet --numprocesses auto -m '$(3)not alone' $(2) && $(1) --quiet -m '$(3)alone' $(2)

# On all cores, the tests of one file on the same: they share a Prometheus.
by_file = pytest --quiet --numprocesses auto --dist loadfile

# Where the interpreter of the host matters: modules, the command, the simulator's tool, installers.
host_python_tests := tests/integration/modules tests/integration/cli tests/integration/simulator/tool tests/integration/vgpu_limiter

# What ansible-core or the Python of the host can make a difference to: not the simulated library, which is C.
newest_tests := $(filter-out tests/integration/simulator/,$(sort $(dir $(wildcard tests/integration/*/test_*.py)))) \
    $(wildcard tests/integration/simulator/tool)

.PHONY: test-unit test-limiter test-monitoring test-integration test-newest test-oldest
test-unit:
	@$(call leg,unit tests,pytest --quiet tests/unit)
	$(every_leg_passed)

# The library is built with gcc and preloaded to programs on a stub of the driver: no GPU, no CUDA.
test-limiter:
	@$(call leg,the vGPU limiter on a stub driver,pytest --quiet --numprocesses auto tests/limiter)
	$(every_leg_passed)

# Recording rules, alerts, dashboards, audits and proposals, by Debian's promtool and Prometheus.
test-monitoring: prometheus-tools
	@$(call leg,rules and alerts and dashboards of the monitoring,$(by_file) tests/monitoring)
	$(call leg,audits and right-sizing on a real Prometheus,$(apart) $(by_file) tests/audit)
	$(every_leg_passed)

test-integration:
	@$(call leg,integration tests,$(call on_all_cores,$(apart) pytest,tests/integration))
	$(every_leg_passed)

test-newest: $(if $(NEWEST_PYTHON),$(venv_newest_stamp))
ifeq ($(NEWEST_PYTHON),)
	@printf '\n=== newest ansible-core: left out, no Python 3.12 or later found (NEWEST_PYTHON= names one)\n'
else
	@$(call leg,unit and integration tests on the newest ansible-core ($(NEWEST_PYTHON)),$(call on_all_cores,$(apart) .venv-newest/bin/python -m pytest,tests/unit $(newest_tests),not sweep and ))
	$(every_leg_passed)
endif

test-oldest:
ifeq ($(OLDEST_PYTHON),)
	@printf '\n=== hosts with Python 3.8: left out, none found (OLDEST_PYTHON= names one)\n'
else
	@$(call leg,integration tests with $(OLDEST_PYTHON) on the host,$(call on_all_cores,$(apart) env OPENFLEET_HOST_PYTHON=$(OLDEST_PYTHON) pytest,$(host_python_tests),not sweep and ))
	$(every_leg_passed)
endif

# One fleet for molecule and for the tests of the lab, apart from the demo's, so that a demo may stand beside it. Hosts go as soon
# as they are done with: each takes seven inotify instances, of which a kernel gives its root 128, and units of the path kind do
# not start without.
.PHONY: test-fleet
test-fleet: image-slurm image-sharing image-monitoring
	@export OPENFLEET_LAB=test
	[ -t 1 ] || export NO_COLOR=1
	destroy() { for scenario in default mig gpu_drain sharing vgpu monitoring audit; do molecule destroy --no-command-borders --scenario-name $$scenario; done >.lab/molecule-destroy.log 2>&1; }
	destroy
	trap destroy EXIT
	$(call leg,site.yml on the simulated fleet (molecule),molecule test --no-command-borders --destroy=never)
	$(call leg,the lab and real clients,pytest --quiet tests/lab)
	molecule destroy --no-command-borders >.lab/molecule-destroy.log 2>&1 || failed=yes
	$(call leg,changes that something is in the way of (molecule),molecule test --no-command-borders --scenario-name mig)
	$(call leg,clients off the GPUs and back: systemd and Slurm (molecule),molecule test --no-command-borders --scenario-name gpu_drain)
	$(call leg,MPS and time slices: switches and failures (molecule),molecule test --no-command-borders --scenario-name sharing)
	$(call leg,tenants with quotas: commands and services and containers (molecule),molecule test --no-command-borders --scenario-name vgpu)
	$(call leg,the fleet under watch: from a trouble to its alert (molecule),molecule test --no-command-borders --scenario-name monitoring)
	$(call leg,audited and right-sized: a recorded week and what comes of it (molecule),molecule test --no-command-borders --scenario-name audit)
	$(every_leg_passed)

# Hosts of their own: bare ones, each with a mirror of packages.
.PHONY: test-packages
test-packages:
	@[ -t 1 ] || export NO_COLOR=1
	destroy() { for scenario in nvidia_driver container_toolkit bundle; do molecule destroy --no-command-borders --scenario-name $$scenario; done >.lab/molecule-packages.log 2>&1; }
	destroy
	trap destroy EXIT
	$(call leg,the driver from a mirror (molecule),molecule test --scenario-name nvidia_driver --no-command-borders)
	$(call leg,the container toolkit under real engines (molecule),molecule test --scenario-name container_toolkit --no-command-borders)
	$(call leg,a host without a network from a bundle (molecule),molecule test --scenario-name bundle --no-command-borders)
	$(every_leg_passed)

.PHONY: bench
bench: setup-test ## figures, one `name value unit` a line (BENCH=group for one group)
	@.venv/bin/python tests/benchmark/run.py $(BENCH)

# --- The lab --------------------------------------------------------------------------------------------------------

.PHONY: lab-up lab-down
lab-up: setup ## start the hosts of inventories/simulated (OPENFLEET_LAB=name for another fleet)
	@ansible-playbook tests/lab/create.yml

lab-down: ## remove them
	@ansible-playbook tests/lab/destroy.yml

.PHONY: clean
clean: ## remove all that was made here: containers, images, environments, caches
	@tests/lab/clean
