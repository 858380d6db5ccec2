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
from fleet import LAB
from lab_fixtures import container_name, lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_hosts import GpuHost
from runs import SCENARIO, CommandRun, Run, SiteRun

__all__ = ["lab_host"]

NAMES = ["canary", "hopper", "ampere", "ada"]


@pytest.fixture
def gpu_host(lab_host):
    """A function from the name of a host to its GpuHost, led to the first layout of the inventory.

    The host belongs to the test until its end; the test of another process (pytest-xdist) waits. A test that wants several
    hosts asks for the fleet, or two such tests might wait for each other.
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
    """All of them, in the order of the inventory."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(gpu_host, NAMES))


@pytest.fixture
def runs():
    """All runs of the test, which end with it."""
    begun: list[Run] = []
    yield begun
    for run in begun:
        run.kill()


@pytest.fixture
def site(tmp_path, runs):
    """A function that begins a run of site.yml: site(limit, variable=value, ...)."""

    def start(limit: str | None = None, **variables) -> SiteRun:
        runs.append(SiteRun(tmp_path, limit, variables))
        return runs[-1]

    return start


@pytest.fixture
def apply(tmp_path, runs):
    """A function that begins a run of gpu-layout on a host, to a layout or a stage: apply(host, layout, option=value, ...)."""

    def start(host: GpuHost, layout: list[dict] | str, **options) -> CommandRun:
        wanted = host.variables["layouts"][layout] if isinstance(layout, str) else layout
        runs.append(CommandRun(tmp_path, host.name, wanted, options))
        return runs[-1]

    return start
