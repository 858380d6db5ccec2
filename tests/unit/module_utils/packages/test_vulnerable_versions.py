# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Warn about known vulnerable versions, refuse or accept them.

The tests run the modules driver and container_toolkit.
"""

from __future__ import annotations

import json
import shutil

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.openfleet.gpu.plugins.module_utils.driver import files as driver_files
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.desired import Driver
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.minimum_versions import DRIVER, TOOLKIT
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.toolkit import Toolkit
from ansible_collections.openfleet.gpu.plugins.modules import container_toolkit, driver
from tests.unit.module_utils.driver import driver_hosts
from tests.unit.module_utils.toolkit import toolkit_hosts

# The simulated hosts use apt, but the modules look for the package manager on the test machine.
pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this machine")

FIXED = {"toolkit": TOOLKIT[-1].version, "driver": DRIVER[580].version}
OLD = {"toolkit": "1.18.2", "driver": "580.95.05"}
each = pytest.mark.parametrize("name", OLD)


class SeenToolkit(Toolkit):
    """A host that already has the requested toolkit, so that no repository is queried."""

    def look(self):
        return toolkit_hosts.right(self.request, packages=toolkit_hosts.packages(self.request.version + "-1"))


class SeenDriver(Driver):
    """A host that already has the requested driver, so that no repository is queried."""

    def look(self):
        self.host = driver_hosts.host()
        path = driver_files.SOURCES["apt"]
        sources = driver_files.OWNER.repository("apt", self._url())
        return driver_hosts.finished(self.request.version, files={path: sources})


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Return a function that runs a module in check mode.

    It returns the output and the warnings of the module.
    """
    warned = []
    # Ansible keeps the warnings of a process, so a later test would see the warnings of an earlier one.
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    monkeypatch.setattr(container_toolkit, "Toolkit", SeenToolkit)
    monkeypatch.setattr(driver, "Driver", SeenDriver)
    repository = {"url": toolkit_hosts.URL, "fingerprints": list(toolkit_hosts.TRUSTED)}
    modules = {
        "toolkit": (container_toolkit, {"source": "host", "repository": repository}),
        "driver": (driver, {"distributions": driver_hosts.DISTRIBUTIONS}),
    }

    def result(name, version, **more):
        module, given = modules[name]
        warned.clear()
        arguments = {"version": version, "state_directory": str(tmp_path), "_ansible_check_mode": True, **given, **more}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out), list(warned)

    return result


@each
def test_vulnerable_version_is_a_warning(run, name):
    """By default, the role warns and continues."""
    found, warned = run(name, OLD[name])
    assert "failed" not in found
    assert OLD[name] in found["vulnerable"] and FIXED[name] in found["vulnerable"]
    assert warned == [found["vulnerable"]]


@each
def test_vulnerable_version_can_be_refused_or_accepted(run, name):
    refused, _warned = run(name, OLD[name], vulnerable="refuse")
    variable = {"toolkit": "container_toolkit_vulnerable", "driver": "nvidia_driver_vulnerable"}[name]
    assert refused["failed"] and refused["where"] == variable and refused["msg"].endswith("Nothing was changed.")
    accepted, warned = run(name, OLD[name], vulnerable="accept")
    assert (accepted["vulnerable"], warned) == ("", [])


@each
def test_fixed_version_has_no_warning(run, name):
    found, warned = run(name, FIXED[name], vulnerable="refuse")
    assert (found["vulnerable"], warned) == ("", [])
