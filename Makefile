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
export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export ANSIBLE_HOME := $(CURDIR)/.cache/ansible
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
export RUFF_CACHE_DIR := $(CURDIR)/.cache/ruff

# --- Stamps: a virtual environment is made anew when its requirements or its Python change --------------------------

checksum = $(shell { cat $(1); echo '$(2)'; } | sha256sum | cut -c 1-12)
venv_stamp := .venv/.made-$(call checksum,requirements.txt,$(PYTHON))
venv_test_stamp := .venv/.made-test-$(call checksum,requirements.txt requirements-unit.txt requirements-test.txt,$(PYTHON))
venv_newest_stamp := .venv-newest/.made-$(call checksum,requirements-unit.txt requirements-newest.txt,$(NEWEST_PYTHON))

test_packages := gcc libc6-dev make

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
	@tests/lab/image/build

.PHONY: setup setup-test
setup: packages ## all that a run needs: Debian packages, virtual environment, base image
	@$(MAKE) -s -j2 $(venv_stamp) image

setup-test: packages-test
	@$(MAKE) -s -j2 $(venv_test_stamp) image

# --- The main job ---------------------------------------------------------------------------------------------------

.PHONY: demo
demo: ## start the simulated fleet, run site.yml on it twice, show what came of it
	@started=$$(date +%s.%N)
	case "$$([ ! -e $(venv_stamp) ] || echo venv)+$$(.lab/bin/podman image exists localhost/openfleet-lab:$(LAB_RELEASE) 2>/dev/null && echo image)" in
	    +) temperature=cold ;;
	    venv+image) temperature=warm ;;
	    *) temperature=partly ;;
	esac
	$(MAKE) setup
	OPENFLEET_LAB=demo .venv/bin/python tests/lab/demo.py --started "$$started" --temperature "$$temperature"

# --- The lab --------------------------------------------------------------------------------------------------------

.PHONY: lab-up lab-down
lab-up: setup ## start the hosts of inventories/simulated (OPENFLEET_LAB=name for another fleet)
	@ansible-playbook tests/lab/create.yml

lab-down: ## remove them
	@ansible-playbook tests/lab/destroy.yml
