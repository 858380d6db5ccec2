# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that systemd units are at most as exposed as documented.

The limits are in docs/security-units.md.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.unit.roles.rendered_units import ROLES, ROOT, SHARED, TEMPLATES, TEXTS, exposure, rendered, rendered_with

#: A unit above this exposure needs a documented reason.
MOST = 3.0
ALL = [*TEMPLATES, *TEXTS]


def lacks_offline() -> str:
    """Return why this machine's systemd cannot analyze unit files, or ""."""
    try:
        done = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "systemd-analyze is not installed"
    found = re.match(r"systemd (\d+)", done.stdout)
    # systemd has the option --offline since version 250.
    return "" if found and int(found.group(1)) >= 250 else "systemd-analyze is older than 250"


def rows() -> list[tuple[str, ...]]:
    """Return the rows of the table in docs/security-units.md.

    The columns are unit, variant, exposure, reason, capabilities, system calls and limits.
    """
    text = (ROOT / "docs" / "security-units.md").read_text()
    section = text.partition("## Exposure of the units")[2].partition("\n#")[0]
    cells = " ([^|]*)\\|" * 4
    return re.findall(rf"^\| `([^`]+)`(?: \(([^)]*)\))? \| ([\d.]+) \|{cells}$", section, re.MULTILINE)


def documented() -> dict[tuple[str, str], tuple[float, str]]:
    """Return the documented maximum exposure and the reason, by unit and variant."""
    return {(name, special): (float(most), reason.strip()) for name, special, most, reason, *_bounds in rows()}


def test_every_unit_of_the_collection_is_checked():
    """Check units from templates of roles, and units from texts in modules."""
    known = {template for _role, template, _given in TEMPLATES.values()}
    known |= {
        # These are drop-ins for units of other packages.
        "alertmanager.conf.j2", "prometheus.conf.j2",
        # This is no unit. Podman's generator makes a unit from it (docs/security-units.md).
        "quadlet.container.j2",
    }  # fmt: skip
    written = {
        path.name for path in ROLES.glob("*/templates/*") if re.search(r"^\[Service\]$", path.read_text(), re.MULTILINE)
    }
    assert written == known
    modules = {
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "plugins").rglob("*.py"), *ROLES.rglob("files/**/*.py")]
        if re.search(r"^(\W*)ExecStart=", path.read_text(), re.MULTILINE)
    }
    assert modules == {
        "plugins/module_utils/install/gpu_simulator.py",
        "plugins/module_utils/techniques/mps/unit.py",
        "plugins/module_utils/toolkit/files.py",
    }


@pytest.mark.skipif(bool(lacks_offline()), reason=lacks_offline() or "-")
@pytest.mark.parametrize(("name", "special"), ALL)
def test_exposure_is_as_documented(tmp_path, name, special):
    text = rendered(name, special)
    most, reason = documented()[name, special]
    found = exposure(tmp_path, name, text)
    assert found <= most
    assert most <= MOST or (reason and "Left open on purpose" in text)


def test_every_documented_unit_exists():
    assert set(documented()) - {("dcgm-exporter.service", "podman")} == set(ALL)


def bounds() -> dict[tuple[str, str], list[str]]:
    """Return the documented bounds of each unit and variant.

    Bounds are the capabilities, the system calls, and the limits for tasks and memory.
    """
    documented_bounds: dict[tuple[str, str], list[str]] = {}
    above: list[str] = []
    for name, special, _most, _reason, *cells in rows():
        if special == "podman":
            continue
        cells = [cell.strip() for cell in cells]
        above = [before if cell == "the same" else cell for cell, before in zip(cells, above or cells)]
        documented_bounds[name, special] = above
    return documented_bounds


def settings(text: str, name: str) -> list[str]:
    """Return the values of a setting in a unit, in order."""
    return [value.strip() for value in re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)]


def test_limits_of_every_unit_are_documented():
    assert set(bounds()) == set(ALL)


@pytest.mark.parametrize(("name", "special"), ALL)
def test_units_have_the_documented_limits(name, special):
    """Compare the limits with the table, because users and libraries depend on them."""
    text = rendered(name, special)
    capabilities, calls, most = bounds()[name, special]
    wanted = {"none": [""], "all": []}.get(capabilities, [capabilities])
    assert settings(text, "CapabilityBoundingSet") == wanted and settings(text, "AmbientCapabilities") == []
    filters = settings(text, "SystemCallFilter")
    assert " ".join(filters) == ("" if calls == "all" else calls)
    assert ", ".join(settings(text, "TasksMax") + settings(text, "MemoryMax")) == most
    if calls != "all":
        assert filters[0].startswith("@system-service")
        assert settings(text, "SystemCallArchitectures") == ["native"]
        assert settings(text, "NoNewPrivileges")[-1] in ("yes", "true")


#: These units are clients of GPUs, and must start after the final layout was restored.
CLIENTS = {
    *("docker.service", "containerd.service", "crio.service", "podman.service", "podman-restart.service"),
    *("kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service", "slurmd.service"),
    *("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-cdi-refresh.service"),
    *("nvidia-dcgm.service", "dcgm-exporter.service", "display-manager.service"),
}


def ordering(text: str, name: str) -> set[str]:
    return {unit for value in settings(text, name) for unit in value.split()}


def test_only_gpu_clients_wait_for_the_layout_at_boot():
    """A hanging driver must not lock out administrators.

    Targets do not wait, and neither do SSH, logins and the network.
    """
    text = rendered("gpu-layout.service", "")
    before = ordering(text, "Before")
    assert before >= CLIENTS
    assert {unit for unit in before if not unit.endswith(".service")} == {"shutdown.target"}
    assert not {
        unit for unit in before if re.match(r"ssh|getty|serial-getty|user@|systemd-|network|dbus|cron|rsyslog", unit)
    }
    # With default dependencies, the unit would wait for basic.target. That target waits for a unit that this one wants.
    assert settings(text, "DefaultDependencies") == ["no"]
    assert not ordering(text, "RequiredBy")
    for each in ("ssh", "basic", "network", "multi-user"):
        assert each not in " ".join(ordering(text, "After"))


def test_services_restarted_after_changes_start_after_the_layout():
    given = {"gpu_layout": SHARED, "gpu_layout_restart_services": ["my-daemon", "other@1.service"]}
    before = ordering(rendered_with("gpu_layout", "gpu-layout.service.j2", given), "Before")
    assert {"my-daemon.service", "other@1.service"} <= before


def test_stopping_a_unit_does_not_wait_for_the_driver():
    assert settings(rendered("gpu-layout.service", ""), "TimeoutStopSec") == ["10s"]


@pytest.mark.parametrize(
    ("name", "special"),
    [("gpu-layout.service", ""), ("gpu-layout-metrics.service", ""), ("dcgm-exporter.service", "embedded")],
)
def test_units_can_access_the_state_of_simulated_gpus(name, special):
    """Any host may have simulated GPUs, even if the inventory does not mark it.

    A playbook or a person may have set them up.
    """
    paths = re.findall(r"^ReadWritePaths=(.*)$", rendered(name, special), re.MULTILINE)
    assert "-/var/lib/gpusim" in " ".join(paths).split()


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("gpu-layout-metrics.service", ""),
        ("gpu-layout-keep.service", ""),
        ("gpu-layout-lease.service", ""),
        ("openfleet-vgpu-agent.service", ""),
        ("dcgm-exporter.service", "embedded"),
    ],
)
def test_services_that_users_can_load_are_limited(name, special):
    text = rendered(name, special)
    assert re.search(r"^TasksMax=\d+$", text, re.MULTILINE) and re.search(r"^MemoryMax=\d+[MG]$", text, re.MULTILINE)


@pytest.mark.parametrize("special", ["", "mps", "vgpu"])
def test_boot_unit_has_the_permissions_to_restore_the_layout(special):
    """Give the boot unit the modules, nodes and paths that real GPUs need.

    Simulated GPUs do not need them.
    """
    text = rendered("gpu-layout.service", special)
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)
    assert {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_MKNOD", "CAP_SYS_PTRACE"} <= set(kept.split())
    assert "PrivateDevices=" not in text and "ProtectKernelModules=" not in text and "DeviceAllow=" not in text
    assert ("ProtectControlGroups=no" in text) == (special == "vgpu")
    writable = " ".join(re.findall(r"^ReadWritePaths=(.*)$", text, re.MULTILINE)).split()
    places = ["/etc/openfleet-gpu", "/etc/systemd/system", "/etc/cdi", "/run/cdi", "/run/openfleet-mps", "/sys/devices"]
    assert {"/var/lib/openfleet-gpu", *map("-{}".format, places)} <= set(writable)


@pytest.mark.parametrize("registered", ["gpu_layout_result", "gpu_layout_planned"])
@pytest.mark.parametrize(
    ("action", "services", "tenants", "cdi"),
    [
        ("keep", ["vgpu"], True, True),
        ("restore", ["mps"], False, True),
        ("keep", [], False, False),
        ("release", ["vgpu"], False, False),
    ],
)
def test_boot_unit_can_restore_gpus_without_an_entry(registered, action, services, tenants, cdi):
    given = {"gpu_layout": SHARED, registered: {"unmanaged": [{"action": action, "services": services}]}}
    text = rendered_with("gpu_layout", "gpu-layout.service.j2", given)
    assert ("ProtectControlGroups=no" in text, "ConfigurationDirectory=cdi" in text) == (tenants, cdi)
    assert " --unnamed keep " in text
