# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
import yaml
from sharing_hosts import SCENARIO, SharingHost


@pytest.fixture(scope="session")
def inventory_layout():
    """Return a function from a host's name to its layout in the inventory."""
    return lambda name: yaml.safe_load((SCENARIO / "inventory/host_vars" / f"{name}.yml").read_text())["gpu_layout"]


@pytest.fixture(scope="session")
def sharing(lab_host):
    """Return a function from a host's name to its SharingHost."""
    return lambda name: SharingHost(name, lab_host(name))


@pytest.fixture
def hopper(sharing, inventory_layout):
    """Return the host, and restore the inventory's layout after the test."""
    host = sharing("hopper")
    yield host
    done = host.apply(*inventory_layout("hopper"))
    assert "error" not in done, done


@pytest.fixture
def ada(sharing, inventory_layout):
    host = sharing("ada")
    yield host
    host.ask("gpusim set 0 timeslicing on && gpusim set 1 timeslicing on")
    done = host.apply(*inventory_layout("ada"))
    assert "error" not in done, done
