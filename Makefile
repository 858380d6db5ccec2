# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# `make help` lists the targets. Targets write to .venv*, .lab and .cache, install Debian packages, and create
# containers and images with names openfleet-*. `make clean` removes all of these except the packages.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# --- Settings: set them in the environment or on the command line
# ------------------------------------------------------

# Name of the fleet on this machine. Containers are named openfleet-$(OPENFLEET_LAB)-HOST.
export OPENFLEET_LAB ?= demo
# Debian release of the lab hosts' base image. See tests/lab/image/build.
export LAB_RELEASE ?= bookworm
export LAB_MIRROR LAB_BASE_IMAGE
# The image of the demo that is built last. Its existence shows that the others exist.
lab_image := .lab/images/$(LAB_RELEASE)-monitoring
# The Python for .venv. ansible-core 2.19 supports 3.11 to 3.13.
PYTHON := $(or $(PYTHON),$(shell tests/lab/find-python first 3.11 3.13))
# The search for other interpreters takes seconds, and these targets do not need them.
find_python = $(if $(filter-out check help language language-record types-record,$(or $(MAKECMDGOALS),help)),$(shell tests/lab/find-python $(1)))
# The Python for .venv-newest. One leg of `make test` uses it with the newest ansible-core.
NEWEST_PYTHON := $(or $(NEWEST_PYTHON),$(call find_python,newest 3.12))
# The oldest Python that the oldest supported ansible-core supports. One leg of `make test` uses it.
OLDEST_CORE_PYTHON := $(or $(OLDEST_CORE_PYTHON),$(call find_python,oldest 3.10 3.12))
# The oldest Python that code on hosts supports. One leg of `make test` uses it.
OLDEST_PYTHON := $(or $(OLDEST_PYTHON),$(call find_python,first 3.8 3.8))
export PYTHON NEWEST_PYTHON OLDEST_CORE_PYTHON OLDEST_PYTHON
# The group of benchmarks that `make bench` runs. If empty, it runs all groups.
BENCH ?=

# --- Nothing is written outside the checkout ------------------------------------------------------------------------

export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.lab/bin:$(PATH)
$(shell mkdir -p .cache/tmp)
export XDG_CACHE_HOME := $(CURDIR)/.cache
# If PYTHONDONTWRITEBYTECODE were set, each of some hundred Ansible runs would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export ANSIBLE_HOME := $(CURDIR)/.cache/ansible
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
export PYTEST_DEBUG_TEMPROOT := $(CURDIR)/.cache/tmp
export RUFF_CACHE_DIR := $(CURDIR)/.cache/ruff

# --- Stamps: a virtual environment is recreated when its requirements or its Python change ---------------------------

checksum = $(shell { cat $(1); echo '$(2)'; } | sha256sum | cut -c 1-12)
venv_stamp := .venv/.made-$(call checksum,requirements-locked.txt,$(PYTHON))
# `pip install --group` (pyproject.toml) needs a newer pip than the one in a new virtual environment.
pip := pip==26.3
extras := --requirement requirements-bundle.txt --requirement requirements-rightsize.txt
# $(call install,ENVIRONMENT,OPTIONS)
install = $(1)/bin/pip install -qq --no-compile $(pip) && $(1)/bin/pip install -qq --no-compile $(2)
requirements := pyproject.toml requirements-bundle.txt requirements-rightsize.txt
venv_test_stamp := .venv/.made-test-$(call checksum,requirements-locked.txt $(requirements),$(PYTHON))
# The environment for `make check`. It lacks molecule, the browser and the importer, so its installation takes a
# fraction of the time.
venv_check := .cache/venv-check
venv_check_stamp := $(venv_check)/.made-$(call checksum,$(requirements),$(PYTHON))
venv_docs := .cache/venv-docs
venv_docs_stamp := $(venv_docs)/.made-$(call checksum,pyproject.toml,$(PYTHON))
venv_newest_stamp := .venv-newest/.made-$(call checksum,$(requirements),$(NEWEST_PYTHON))
venv_oldest_core := .cache/venv-oldest-core
venv_oldest_core_stamp := $(venv_oldest_core)/.made-$(call checksum,pyproject.toml,$(OLDEST_CORE_PYTHON))

# On Ubuntu, the package chromium only installs a snap, which these tests cannot drive. So the tests of the pages are
# skipped there. Tests attack sudo, so sudo must be installed.
test_packages := gcc gnupg libc6-dev make openssl sudo $(if $(shell grep -sx ID=debian /etc/os-release),chromium)

.PHONY: help
help: ## print this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 25
	printf '\nLegs, each by make test-LEG:\n'
	sed -nE 's/^#leg /  /p' $(firstword $(MAKEFILE_LIST))

# --- Setting up -----------------------------------------------------------------------------------------------------

# Some distributions have ensurepip in a separate package.
venv_package = $(shell $(1) -c 'import ensurepip' 2>/dev/null || $(1) -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')

.PHONY: packages packages-test
packages: require-python
	@tests/lab/prepare $(call venv_package,$(PYTHON))

packages-test: require-python
	@tests/lab/prepare $(call venv_package,$(PYTHON)) $(if $(NEWEST_PYTHON),$(call venv_package,$(NEWEST_PYTHON))) \
	    $(if $(OLDEST_CORE_PYTHON),$(call venv_package,$(OLDEST_CORE_PYTHON))) $(test_packages)

.PHONY: require-python
require-python:
	@[ -n "$(PYTHON)" ] || { echo 'make: no Python 3.11, 3.12 or 3.13 found: install one (apt-get install python3), or name one with PYTHON=' >&2; exit 1; }

$(venv_stamp):
	@echo 'venv: .venv with $(PYTHON)'
	rm -rf .venv && mkdir -p .cache
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -qq --no-compile --require-hashes --only-binary=:all: --requirement requirements-locked.txt
	touch $@

$(venv_test_stamp): $(venv_stamp)
	@echo 'venv: test tools into .venv'
	$(call install,.venv,$(extras) --group test)
	touch $@

$(venv_check_stamp): | require-python
	@echo 'venv: $(venv_check) with $(PYTHON)'
	rm -rf $(venv_check) && mkdir -p .cache
	$(PYTHON) -m venv $(venv_check)
	$(call install,$(venv_check),$(extras) --group check)
	@# Fills the cache of the type checker, so that the first `make check` is as fast as later ones. That one reports errors.
	-@$(venv_check)/bin/python tools/check_types.py >/dev/null 2>&1
	touch $@

$(venv_docs_stamp): | require-python
	@echo 'venv: $(venv_docs) with $(PYTHON)'
	rm -rf $(venv_docs) && mkdir -p .cache
	$(PYTHON) -m venv $(venv_docs)
	$(call install,$(venv_docs),--group docs)
	touch $@

$(venv_newest_stamp):
	@echo 'venv: .venv-newest with $(NEWEST_PYTHON)'
	rm -rf .venv-newest && mkdir -p .cache
	$(NEWEST_PYTHON) -m venv .venv-newest
	$(call install,.venv-newest,$(extras) --group newest)
	touch $@

$(venv_oldest_core_stamp):
	@echo 'venv: $(venv_oldest_core) with $(OLDEST_CORE_PYTHON)'
	rm -rf $(venv_oldest_core) && mkdir -p .cache
	$(OLDEST_CORE_PYTHON) -m venv $(venv_oldest_core)
	$(call install,$(venv_oldest_core),--group oldest-core)
	touch $@

# tests/lab/image/build takes a lock, so one image is built at a time. A variant is the base image with additional
# packages for some hosts: Prometheus and Alertmanager, Debian's Slurm, or a container engine for MPS clients.
build_image = tests/lab/image/build
.PHONY: image image-slurm image-slurmdbd image-sharing image-monitoring image-kubernetes image-rpm
image: packages
	@$(build_image)

image-monitoring: image
image-slurm: | image-monitoring
image-sharing: | image-slurm
image-kubernetes: image
image-rpm: image
image-slurmdbd: image
image-slurm image-slurmdbd image-sharing image-monitoring image-kubernetes image-rpm: packages
	@$(build_image) $(@:image-%=%)

# Debian's Prometheus and Alertmanager. The target only unpacks the packages, because installing them would start the
# services.
prometheus_stamp := .lab/prometheus/.made-$(call checksum,tests/lab/fetch-packages)
$(prometheus_stamp):
	@tests/lab/fetch-packages prometheus promtool prometheus prometheus-alertmanager
	touch $@

# Debian's etcd. The target only unpacks this package too.
etcd_stamp := .lab/etcd/.made-$(call checksum,tests/lab/fetch-packages)
$(etcd_stamp):
	@tests/lab/fetch-packages etcd etcd etcd-server
	touch $@

# The programs of a Kubernetes cluster. The first run compiles them from Go modules (OPENFLEET_GO_CACHE).
.PHONY: kubernetes-programs
kubernetes-programs:
	@tests/kubernetes/build >/dev/null

.PHONY: prometheus-tools etcd venv-test venv-docs venv-newest venv-oldest-core
prometheus-tools: $(prometheus_stamp)
etcd: $(etcd_stamp)
venv-test: $(venv_test_stamp)
venv-docs: $(venv_docs_stamp)
venv-newest: $(venv_newest_stamp)
venv-oldest-core: $(venv_oldest_core_stamp)

# Generate the dashboards from their source. Run it after a change of the source. A test fails if this was forgotten.
.PHONY: dashboards
dashboards: $(venv_test_stamp) ## write the Grafana dashboards
	.venv/bin/python roles/gpu_monitoring/dashboards/build.py

# Generate the pages about variables from the argument specs. A test fails if this was forgotten.
.PHONY: variables
variables: $(venv_test_stamp) ## write docs/variables*.md from the argument specs
	.venv/bin/python tools/variables_page.py

.PHONY: docs
docs: $(venv_docs_stamp) ## build the documentation site in .cache/docs
	@$(venv_docs)/bin/python tools/site/build.py .cache/docs

# The tarball is built from the last commit. The tests follow the README and how-to pages from the tarball, on two lab hosts.
RELEASE ?= 0.9.0
.PHONY: release
release: venv-test image-sharing ## build and test the tarball of a release in .cache/release (RELEASE=0.9.0)
	@.venv/bin/python tools/release/build.py $(RELEASE) .cache/release
	$(MAKE) leg-release OPENFLEET_THOROUGH=1

# Record the hashes of packages that root installs, or that this checkout's environment contains. pip uses the index in
# its configuration.
.PHONY: hashes
hashes: $(venv_stamp) ## renew the hashes of Python packages, after a change of a version
	.venv/bin/python tools/renew_hashes.py

.PHONY: setup setup-test
setup: packages ## install Debian packages, create the virtual environment and the images
	@$(MAKE) -s -j2 $(venv_stamp) image-monitoring

setup-test: packages-test
	@$(MAKE) -s -j2 $(venv_test_stamp) image-monitoring

# --- The main job ---------------------------------------------------------------------------------------------------

.PHONY: demo
demo: ## start the simulated fleet, run site.yml twice, audit it and show the results (KUBERNETES=1: and a cluster)
	@started=$$(date +%s.%N)
	there=$$(ls $(venv_stamp) 2>/dev/null | wc -l)$$(.lab/bin/podman image exists "$$(cat $(lab_image) 2>/dev/null)" 2>/dev/null && echo 1 || echo 0)
	case $$there in 00) temperature=cold ;; 11) temperature=warm ;; *) temperature=partly ;; esac
	$(MAKE) setup
	# Without OR-Tools, right-sizing frees fewer GPUs and destroys more instances.
	.venv/bin/python -c 'import numpy, ortools' 2>/dev/null || .venv/bin/pip install -qq --no-compile --requirement requirements-rightsize.txt
	$(if $(filter 1,$(KUBERNETES)),$(MAKE) -s venv-test image-kubernetes etcd)
	OPENFLEET_LAB=demo .venv/bin/python tests/lab/demo.py --started "$$started" --temperature "$$temperature" $(if $(filter 1,$(KUBERNETES)),--kubernetes)

# Nothing on this machine is changed unless CHECK_OPTIONS contains --change. See docs/hardware.md.
.PHONY: check-gpu
check-gpu: $(venv_stamp) ## check this machine's real GPUs and write gpu-check.html [CHECK_OPTIONS=--help]
	.venv/bin/python tools/check_gpu.py $(CHECK_OPTIONS)

# The bundle contains everything that the hosts of INVENTORY would otherwise download.
.PHONY: bundle
bundle: $(venv_stamp) ## collect a bundle for hosts without a network: INVENTORY=hosts.yml BUNDLE_DIR=/srv/bundle [BUNDLE_OPTIONS=--check]
	@[ -n "$(INVENTORY)" ] && [ -n "$(BUNDLE_DIR)" ] || { echo 'make: name the inventory and the folder: make bundle INVENTORY=hosts.yml BUNDLE_DIR=/srv/bundle' >&2; exit 1; }
	ansible-playbook -i $(INVENTORY) playbooks/bundle.yml -e gpu_bundle_requirements=$(CURDIR)/requirements-locked.txt -e gpu_bundle_dir=$(abspath $(BUNDLE_DIR)) $(BUNDLE_OPTIONS)

# --- Tests and figures ----------------------------------------------------------------------------------------------

# Partitioning GPUs requires root, even on the simulator. Root and other users write their files to separate folders.
ifneq ($(shell id -u),0)
as_root := sudo -n env "PATH=$(PATH)" PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS='-p no:cacheprovider $(PYTEST_ADDOPTS)' \
    OPENFLEET_THOROUGH=$(OPENFLEET_THOROUGH) ANSIBLE_CONFIG=$(ANSIBLE_CONFIG) ANSIBLE_HOME=$(CURDIR)/.cache/root/ansible XDG_CACHE_HOME=$(CURDIR)/.cache/root \
    HYPOTHESIS_STORAGE_DIRECTORY=$(CURDIR)/.cache/root/hypothesis PYTEST_DEBUG_TEMPROOT=$(PYTEST_DEBUG_TEMPROOT)
endif

# Run as root in a PID namespace. tests/apart.py gives the reason, and does the same if pytest is run by hand.
apart := $(as_root) env OPENFLEET_APART=1 unshare --pid --fork --kill-child --mount-proc bash -c '"$$@"; exit $$?' --

# Legs of the tests. `make help` prints these lines; `make test-LEG` runs one.
#leg modules            modules and site.yml on the simulated NVML library of this machine
#leg commands           what roles install on hosts: gpu-layout, the exporter, the limiter; bundles
#leg kubernetes         site.yml and pods in a cluster whose nodes are lab hosts, then its figures
#leg kubernetes-api     Kubernetes roles on an API server without nodes
#leg default            site.yml on the fleet of inventories/simulated
#leg container_toolkit  container toolkit, container engines and CDI on lab hosts
#leg audit              audit, proposal and reclaim on lab hosts with a recorded week, by the timer of the role gpu_audit
#leg audit-reports      audits and proposals from recorded histories in Prometheus, and their pages in Chromium
#leg sharing            MPS daemons and time slices on lab hosts
#leg nvidia_driver      driver installation on bare Debian hosts
#leg rpm                driver, container toolkit and exporter on hosts of the Red Hat family
#leg monitoring         Prometheus, Alertmanager and exporters on lab hosts: each fault raises its alert
#leg alert-rules        recording rules, alerts and dashboards with promtool, without hosts
#leg mig                MIG changes on lab hosts with busy GPUs, failures and interruptions
#leg limiter            the vGPU limiter on a stub of the driver library
#leg vgpu               vGPU tenants on a lab host with systemd and Podman
#leg leases             leases on a lab host with systemd, and attacks by its users
#leg unit               unit tests
#leg gpu_drain          the role gpu_drain with systemd and Slurm
#leg gpu_slurm          GRES of a layout with a real Slurm: devices of jobs, and jobs that survive a change
#leg adversary          attacks by users, tenants and hosts
#leg figures            each group of make bench with the smallest input
#leg lint               style, types, language, ansible-lint, and the collection's tarball
#leg simulator          the simulated NVML library with nvidia-smi and nvidia-ml-py
#leg oldest-python      modules with Python 3.8 on hosts
#leg oldest-core        filters, modules and site.yml with the oldest supported ansible-core
#leg newest-core        filters, modules and site.yml with the newest ansible-core
#leg bundle             site.yml on a host without a network, from a bundle
#leg holders            detection of GPU holders: tests that hold GPUs of the whole machine
#leg trixie             thorough run only: Debian 13 on hosts
#leg sanity             thorough run only: ansible-test sanity on the installed collection with three releases of ansible-core
#leg docs               thorough run only: the documentation site, and its pages in Chromium
#leg release            thorough run only: the README and how-tos from a release's tarball, on lab hosts
#leg slurm_accounting   thorough run only: jobs from a real slurmdbd with MariaDB
#leg sanitized          thorough run only: the limiter with address and undefined-behavior sanitizers
#leg threads            thorough run only: the limiter with the thread sanitizer
#leg pythons            thorough run only: modules with each Python from 3.9 to 3.14 on hosts
#leg cores              thorough run only: ansible-core between the usual and the newest

# The legs of `make test`. The longest legs come first, so that no long leg runs alone at the end. The number of
# concurrent legs is the number of cores plus one, because a leg waits for its hosts an eighth of its time. `make
# test-mig` installs what the leg `mig` needs and runs the leg. `make leg-mig` only runs it.
scenarios := mig default container_toolkit monitoring gpu_drain gpu_slurm sharing nvidia_driver audit vgpu leases bundle rpm slurm_accounting
legs := modules commands kubernetes default kubernetes-api container_toolkit audit-reports audit sharing nvidia_driver rpm monitoring mig \
    limiter unit gpu_drain gpu_slurm adversary vgpu leases figures lint simulator alert-rules oldest-python oldest-core newest-core bundle holders
# The thorough run also includes all long tests (tests/thorough.py) and these legs.
export OPENFLEET_THOROUGH ?=
ifneq ($(OPENFLEET_THOROUGH),)
legs += trixie sanitized threads pythons cores slurm_accounting sanity docs release
endif
JOBS ?= $(shell expr $$(nproc) + 1)
# A leg that runs longer than this time in seconds fails. The longest leg, modules, takes half of this time on two free
# cores.
LEG_SECONDS ?= $(if $(OPENFLEET_THOROUGH),14400,3000)

# Requirements of each leg in addition to the packages. The leg `commands` creates a host from the image's files.
needs_default := image-monitoring
needs_rpm := image-rpm
needs_monitoring := image-monitoring
needs_audit := image-monitoring
needs_gpu_drain := image-slurm
needs_gpu_slurm := image-slurm prometheus-tools
needs_slurm_accounting := image-slurmdbd
needs_sharing := image-sharing
needs_vgpu := image-sharing
needs_leases := image-sharing
needs_commands := image
needs_alert-rules := prometheus-tools
needs_audit-reports := prometheus-tools
needs_figures := image prometheus-tools
# The reason why this machine cannot or must not run the tests on a cluster. Empty if it can run them.
KUBERNETES ?=
without_kubernetes := $(if $(filter skip,$(KUBERNETES)),KUBERNETES=skip,$(if $(shell command -v go),,there is no Go))
needs_kubernetes := $(if $(without_kubernetes),,kubernetes-programs image-kubernetes etcd)
needs_kubernetes-api := $(if $(without_kubernetes),,kubernetes-programs etcd)
needs_gpu_slurm += $(if $(and $(OPENFLEET_THOROUGH),$(if $(without_kubernetes),,1)),kubernetes-programs etcd)
needs_trixie := image prometheus-tools $(if $(without_kubernetes),,kubernetes-programs etcd)
needs_newest-core := $(if $(NEWEST_PYTHON),venv-newest)
needs_docs := venv-docs
needs_release := image-sharing
needs_nvidia_driver := $(if $(OPENFLEET_THOROUGH),image-slurm,image)
needs_sanity := $(needs_newest-core) $(if $(OLDEST_CORE_PYTHON),venv-oldest-core)
needs_oldest-core := $(if $(OLDEST_CORE_PYTHON),venv-oldest-core)
# Number of lab hosts of each leg. This machine limits the number of concurrent lab hosts of all legs
# (tests/lab/inotify).
hosts_default := 5
hosts_audit := 4
hosts_bundle := 1
hosts_container_toolkit := 3
hosts_figures := 1
hosts_gpu_drain := 2
hosts_gpu_slurm := 1
hosts_kubernetes := 2
hosts_leases := 1
hosts_mig := 4
hosts_monitoring := 3
hosts_nvidia_driver := 5
hosts_release := 2
hosts_rpm := 2
hosts_sharing := 2
hosts_slurm_accounting := 1
hosts_trixie := 4
hosts_vgpu := 1
needs_of = venv-test $(or $(needs_$(1)),$(if $(filter $(1),$(scenarios) trixie),image))
comma := ,
none :=
queued = $(1):$(subst $(none) $(none),$(comma),$(strip $(2)))

# This value is part of the names of test hosts, so that two checkouts on one machine do not use the same hosts.
export OPENFLEET_CHECKOUT := $(shell printf '%s' '$(CURDIR)' | sha256sum | cut -c 1-6)

.PHONY: test test-thorough test-fast $(addprefix test-,$(legs)) $(addprefix leg-,$(legs))
test: ## run all legs, in about 50 minutes on two cores: before each push
	@$(MAKE) packages-test
	rm -rf .cache/test && mkdir -p .cache/test
	exec 9>&1
	$(PYTHON) tests/queue --limit $(LEG_SECONDS) --room $$(tests/lab/inotify room) --cleanup 'tests/leg remove-hosts' $(JOBS) venv-test image $(call queued,image-monitoring,image) $(call queued,image-slurm,image-monitoring) \
	    $(call queued,image-sharing,image-slurm) $(call queued,image-rpm,image-sharing) prometheus-tools $(needs_newest-core) $(needs_oldest-core) \
	    $(if $(without_kubernetes),,kubernetes-programs etcd $(call queued,image-kubernetes,image-sharing)) \
	    $(foreach leg,$(legs),$(call queued,leg-$(leg)$(addprefix @,$(hosts_$(leg))),$(call needs_of,$(leg)))) || true
	TOTAL_SECONDS=$$SECONDS tests/leg summary $(legs)

test-thorough: ## run every draw, sweep, sanitizer and version: before a release
	@$(MAKE) test OPENFLEET_THOROUGH=1 PYTEST_ADDOPTS='--hypothesis-profile=default'

.PHONY: check types-record
check: $(venv_check_stamp) ## check what changed, in seconds: style, types, language, its unit tests (FILES=, BASE=main, ALL=1)
	@PATH=$(CURDIR)/$(venv_check)/bin:$$PATH $(venv_check)/bin/python tools/check.py $(if $(BASE),--base $(BASE)) $(if $(ALL),--all) $(FILES)

types-record: $(venv_check_stamp) ## remove files that pass mypy's strict mode from the list of those that do not
	@$(venv_check)/bin/python tools/check_types.py --record

# Excludes the test of tests/lab/warm_playbook.py, because that test alone takes a tenth of the time.
test-fast: $(venv_test_stamp) ## run ruff and all unit tests, in a minute
	@ruff check --quiet
	pytest --quiet -n $$(nproc) -o faulthandler_timeout=0 --ignore tests/unit/tests/test_warm_playbook.py tests/unit

$(foreach leg,$(legs),$(eval test-$(leg): packages-test $(call needs_of,$(leg))))
$(addprefix test-,$(legs)):
	@$(MAKE) $(@:test-%=leg-%)

.PHONY: lint
lint: test-lint ## check language, types, ruff, yamllint, ansible-lint (production profile), antsibull, Galaxy's importer

# These targets need no virtual environment.
.PHONY: language language-record
language: require-python ## list text that is not plain English (FILES=docs/vgpu.md for some files)
	@$(PYTHON) tools/check_language.py --list $(FILES)

language-record: require-python ## lower the recorded numbers of such text, after it was rewritten
	@$(PYTHON) tools/check_language.py --record

# ansible-lint runs Ansible's syntax check for each playbook. The leg excludes the tests' playbooks, because other legs
# run them.
leg-lint:
	@tests/leg run lint bash -ec 'tools/check_language.py; ruff check; ruff format --check; tools/check_types.py; yamllint --strict .; ansible-lint -q $(if $(OPENFLEET_THOROUGH),,--exclude molecule tests); antsibull-changelog lint; pytest --quiet tests/collection/test_tarball.py'

leg-unit:
	@tests/leg run unit pytest --quiet -m 'not alone' tests/unit

# gcc builds the library, and programs on a stub of the driver preload it. Neither a GPU nor CUDA is needed.
leg-limiter:
	@tests/leg run limiter pytest --quiet tests/limiter

# Test recording rules, alerts and dashboards with Debian's promtool and Prometheus.
leg-alert-rules:
	@tests/leg run alert-rules pytest --quiet tests/monitoring

# Run each group of `make bench` with the smallest input. run.py starts a PID namespace for groups without lab hosts.
# The leg `kubernetes` runs the benchmarks that need a cluster. The leg `trixie` runs those that need Slurm 24.11.
cluster_figures := tests/benchmark/test_groups.py::test_each_group_measures_all_its_figures[kubernetes]
slurm_figures := tests/benchmark/test_groups.py::test_each_group_measures_all_its_figures[slurm]
leg-figures:
	@tests/leg run figures pytest --quiet --deselect '$(cluster_figures)' --deselect '$(slurm_figures)' tests/benchmark

# Run audits and right-sizing with a real Prometheus, and show their pages in Chromium.
leg-audit-reports:
	@tests/leg run audit-reports $(apart) pytest --quiet tests/audit

# Test modules on the simulated library. Tests that hold GPUs affect every other test, so they are in the leg `holders`.
leg-modules:
	@tests/leg run modules $(apart) pytest --quiet -m 'not alone' tests/integration/modules

leg-holders:
	@tests/leg run holders $(apart) pytest --quiet -m alone tests/unit tests/integration

# Attacks by users, tenants and hosts.
leg-adversary:
	@tests/leg run adversary $(apart) pytest --quiet tests/adversary

# The clients are two releases of nvidia-smi and nvidia-ml-py, or all releases in the thorough run.
leg-simulator:
	@tests/leg run simulator $(apart) pytest --quiet tests/integration/simulator tests/clients

# Test the programs that roles install (gpu-layout, the exporter, the limiter) and bundles.
leg-commands:
	@tests/leg run commands $(apart) pytest --quiet $(addprefix tests/integration/,bundle cli dcgm_exporter vgpu_limiter)

# A short test of filters, modules and site.yml with another ansible-core. Only the usual ansible-core runs the tests of
# other parts of the roles, and the dry run of a fleet.
core_tests := tests/unit/modules/test_module_docs.py tests/unit/filter/test_filters.py tests/unit/callback/test_fleet_summary.py tests/adversary/test_hostile_terminal.py \
    $(patsubst %,tests/integration/modules/test_%.py,action_groups gpu_info mps site) \
    $(if $(OPENFLEET_THOROUGH),,--deselect tests/integration/modules/test_site.py::test_dry_run_shows_the_steps_and_changes_nothing)

# The thorough run includes everything.
leg-newest-core:
	@if [ -z '$(NEWEST_PYTHON)' ]; then tests/leg left-out newest-core 'no Python 3.12 or later (NEWEST_PYTHON names one)'; exit; fi
	tests/leg run newest-core $(apart) .venv-newest/bin/pytest --quiet $(if $(OPENFLEET_THOROUGH),tests/unit tests/integration,-m core $(core_tests))

oldest_core_tests := $(core_tests) \
    $(if $(OPENFLEET_THOROUGH),$(patsubst %,tests/integration/modules/test_%.py,drain mig saved_plan vgpu))
leg-oldest-core:
	@if [ -z '$(OLDEST_CORE_PYTHON)' ]; then tests/leg left-out oldest-core 'no Python 3.10 to 3.12 (OLDEST_CORE_PYTHON names one)'; exit; fi
	tests/leg run oldest-core $(apart) env OPENFLEET_GPU_TRUST_HOSTS=1 $(venv_oldest_core)/bin/python -m pytest --quiet -m core $(oldest_core_tests)

leg-oldest-python:
	@if [ -z '$(OLDEST_PYTHON)' ]; then tests/leg left-out oldest-python 'no Python 3.8 (OLDEST_PYTHON names one)'; exit; fi
	tests/leg run oldest-python $(apart) env OPENFLEET_HOST_PYTHON=$(OLDEST_PYTHON) pytest --quiet -m $(if $(OPENFLEET_THOROUGH),'not alone',host_python) tests/integration

# The other tests of the limiter need the library as released, or use features that do not work with a sanitizer: a
# sanitizer refuses RTLD_DEEPBIND and dlmopen, and ends a program with SIGABRT if a test waits for SIGBUS.
leg-sanitized:
	@OPENFLEET_SANITIZER=address,undefined tests/leg run sanitized pytest --quiet tests/limiter \
	    $(addprefix --ignore=tests/limiter/,test_binary.py test_dlsym.py test_front.py test_layers.py test_reach.py test_top.py) \
	    --deselect tests/limiter/test_agent_attacks.py::test_without_the_agent_truncating_the_file_ends_the_neighbours

# Launches of several threads, with and without the agent. test_sanitizers.py covers the threads of the other tests. The
# thorough run does not repeat these tests more often, because further repetitions find no other race.
leg-threads:
	@OPENFLEET_SANITIZER=thread OPENFLEET_THOROUGH= tests/leg run threads pytest --quiet \
	    $(addprefix tests/limiter/,test_throttle.py test_waits.py test_agent.py test_agent_attacks.py test_agent_nvml.py) \
	    --deselect tests/limiter/test_agent_attacks.py::test_without_the_agent_truncating_the_file_ends_the_neighbours

# Run modules on hosts with every Python between the oldest and the newest one that this machine has.
leg-pythons:
	@tests/leg run pythons $(apart) bash -ec 'for minor in 9 10 11 12 13 14; do python=$$(tests/lab/find-python first 3.$$minor 3.$$minor); \
	    [ -z "$$python" ] || { echo "$$python"; OPENFLEET_HOST_PYTHON=$$python pytest --quiet -m host_python tests/integration; }; done'

# ansible-core releases between the usual one and the newest.
CORES ?= 2.20
leg-cores:
	@if [ -z '$(NEWEST_PYTHON)' ]; then tests/leg left-out cores 'no Python 3.12 or later (NEWEST_PYTHON names one)'; exit; fi
	tests/leg run cores $(apart) bash -ec 'for core in $(CORES); do venv=.cache/venv-core-$$core; \
	    [ -x $$venv/bin/pytest ] || { $(NEWEST_PYTHON) -m venv $$venv; $(call install,$$venv,$(extras) --group unit "ansible-core~=$$core.0"); }; \
	    $$venv/bin/python -m pytest --quiet -m core tests/unit tests/integration; done'

leg-docs:
	@OPENFLEET_DOCS_PYTHON=$(venv_docs)/bin/python tests/leg run docs pytest --quiet tests/docs

leg-release:
	@tests/leg run release pytest --quiet tests/collection/test_release.py

leg-sanity:
	@OPENFLEET_CORES='.venv $(if $(NEWEST_PYTHON),.venv-newest) $(if $(OLDEST_CORE_PYTHON),$(venv_oldest_core))' \
	    tests/leg run sanity pytest --quiet tests/collection/test_sanity.py

# Debian 13 on the hosts. Runs after the scenarios of the same names, with a separate molecule directory. Also CDI and
# the DRA driver in a cluster, because the containerd of Debian 12 does not support CDI, and changes on a busy node with
# Slurm 24.11.
leg-trixie:
	@export LAB_RELEASE=trixie NO_COLOR=1 XDG_CACHE_HOME=$(CURDIR)/.cache/trixie OPENFLEET_CHECKOUT=$(OPENFLEET_CHECKOUT)-13
	tests/leg run trixie bash -ec 'tests/lab/image/build; tests/lab/image/build slurm; \
	    for scenario in nvidia_driver container_toolkit mig gpu_slurm; do molecule test --no-command-borders --scenario-name $$scenario; done; \
	    pytest --quiet "$(slurm_figures)"; \
	    [ -n "$(without_kubernetes)" ] || { tests/lab/image/build kubernetes; pytest --quiet tests/kubernetes/test_cdi.py tests/kubernetes/test_dra.py tests/kubernetes/test_openfleet_dra.py; }'

# A real cluster: site.yml and pods on nodes that are lab hosts. This leg does not run in a PID namespace, because
# podman needs the machine's process IDs. The benchmarks run last, in a separate cluster, because its node has the
# same name as one of the tests' nodes.
cluster_tests := $(patsubst %,tests/kubernetes/test_%.py,nodes site mig_manager cdi dra openfleet_dra kueue volcano)
leg-kubernetes:
	@if [ -n '$(without_kubernetes)' ]; then tests/leg left-out kubernetes '$(without_kubernetes)'; exit; fi
	tests/leg run kubernetes bash -ec 'pytest --quiet $(cluster_tests); pytest --quiet "$(cluster_figures)"'

# Test roles on a real API server. Folders of this machine act as hosts.
leg-kubernetes-api:
	@if [ -n '$(without_kubernetes)' ]; then tests/leg left-out kubernetes-api '$(without_kubernetes)'; exit; fi
	tests/leg run kubernetes-api $(apart) pytest --quiet tests/kubernetes $(addprefix --ignore=,$(cluster_tests))

# Scenarios of molecule. Each scenario has its own fleet. Some scenarios include more hosts in the thorough run.
leg-default: export OPENFLEET_LIMIT := $(if $(OPENFLEET_THOROUGH),all,h100,l40s,monitor)
leg-nvidia_driver: export OPENFLEET_LIMIT := $(if $(OPENFLEET_THOROUGH),all,hgx,pcie,blackwell),localhost
leg-rpm: export OPENFLEET_LIMIT := $(if $(OPENFLEET_THOROUGH),all,el9),localhost
leg-container_toolkit: export OPENFLEET_LIMIT := $(if $(OPENFLEET_THOROUGH),all,boxes,engines),localhost
$(addprefix leg-,$(scenarios)):
	@export NO_COLOR=1
	tests/leg run $(@:leg-%=%) molecule test --no-command-borders --scenario-name $(@:leg-%=%)

# The group `kubernetes` also needs the image of nodes.
.PHONY: bench
bench: setup-test prometheus-tools $(if $(or $(without_kubernetes),$(filter-out kubernetes,$(BENCH))),,image-kubernetes etcd) ## print figures, one `name value unit` a line (BENCH=group for one group)
	@.venv/bin/python tests/benchmark/run.py $(BENCH)

# --- The lab --------------------------------------------------------------------------------------------------------

.PHONY: lab-up lab-down
lab-up: setup ## start the hosts of inventories/simulated (OPENFLEET_LAB=name for another fleet)
	@ansible-playbook tests/lab/create.yml

lab-down: ## remove these hosts
	@ansible-playbook tests/lab/destroy.yml

.PHONY: clean
clean: ## remove containers, images, environments and caches of this checkout
	@tests/lab/clean
