# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import fcntl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.lab.fleet import LAB
from tests.lab.lab_fixtures import container_name, lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_hosts import GpuHost
from runs import SCENARIO, CommandRun, Run, SiteRun

__all__ = ["lab_host"]

NAMES = ["canary", "hopper", "ampere", "ada"]


@pytest.fixture
def gpu_host(lab_host):
    """Return a function that returns a host by name, with the first layout applied.

    The test owns the host until the test ends. Tests in other processes (pytest-xdist) wait for the host. A test that
    needs several hosts must use the fixture `fleet`. Otherwise two such tests could wait for each other.
    """
    hosts, locks = [], contextlib.ExitStack()

    def connect(name: str) -> GpuHost:
        lock = locks.enter_context((LAB / f"{container_name(name)}.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        variables = yaml.safe_load((SCENARIO / "inventory/host_vars" / f"{name}.yml").read_text())
        host = GpuHost(name, lab_host(name), variables)
        hosts.append(host)
        host.to_first()
        return host

    with locks:
        yield connect
        for host in hosts:
            host.clear()


@pytest.fixture
def canary(gpu_host):
    return gpu_host("canary")


@pytest.fixture
def hopper(gpu_host):
    return gpu_host("hopper")


@pytest.fixture
def ampere(gpu_host):
    return gpu_host("ampere")


@pytest.fixture
def fleet(gpu_host):
    """Return all hosts in the order of the inventory."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(gpu_host, NAMES))


@pytest.fixture
def runs():
    """Return a list for all runs of the test. The runs are killed after the test."""
    begun: list[Run] = []
    yield begun
    for run in begun:
        run.kill()


@pytest.fixture
def site(tmp_path, runs):
    """Return a function that starts site.yml: site(limit, variable=value, ...)."""

    def start(limit: str | None = None, **variables) -> SiteRun:
        runs.append(SiteRun(tmp_path, limit, variables))
        return runs[-1]

    return start


@pytest.fixture
def apply(tmp_path, runs):
    """Return a function that starts gpu-layout on a host with a layout or a stage.

    For example: apply(host, layout, option=value, ...).
    """

    def start(host: GpuHost, layout: list[dict] | str, **options) -> CommandRun:
        wanted = host.variables["layouts"][layout] if isinstance(layout, str) else layout
        runs.append(CommandRun(tmp_path, host.name, wanted, options))
        return runs[-1]

    return start
