# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that services and CDI specifications follow a change of devices.

The tests need a host after a run of site.yml. systemd and its units are real, and the devices are those that nvidia-smi
shows. nvidia-ctk is a stand-in. Its unit has the relevant directives of the unit in the toolkit's repository
(NVIDIA/nvidia-container-toolkit, deployments/systemd).
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from tests.lab.host_state import describe_failures
from tests.lab.lab_fixtures import BOOT_SECONDS, reboot, runner
from tests.lab.lab_fixtures import BOOT_UNIT as BOOT

STAND_IN = Path(__file__).with_name("stand_in_nvidia_ctk.py")
LASTING, PASSING = "/etc/cdi/nvidia.yaml", "/run/cdi/nvidia.yaml"
REFRESH = """[Unit]
Description=Stand-in for the container toolkit's unit
ConditionPathExists=/usr/bin/nvidia-ctk
After=multi-user.target
[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
ExecStart=/usr/bin/nvidia-ctk cdi generate
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
"""
#: The unit has the name of a real service, so the boot unit is ordered before it. Like the real service, it lists the
#: devices once at its start.
LISTER = """[Unit]
Description=Lists the devices when it starts, and never again
[Service]
Type=notify
NotifyAccess=all
ExecStart=/bin/sh -c 'nvidia-smi -L >/run/listed && [ ! -e /run/refuse ] && systemd-notify --ready && exec sleep infinity'
[Install]
WantedBy=multi-user.target
"""
FOLLOW = """
import sys
from openfleet_gpu.errors import FollowError
from openfleet_gpu.cdi.follow import follow
try:
    print(*follow(sys.argv[2:], again=sys.argv[1] == "again"), sep="\\n")
except FollowError as error:
    sys.exit("%s\\ndone: %s" % (error, "; ".join(error.steps_done)))
"""


class Clients:
    """A host with the toolkit, a service that lists devices, and a stopped service."""

    def __init__(self, host) -> None:
        self.host = host
        self.write("/usr/bin/nvidia-ctk", STAND_IN.read_text(), "755")
        self.write("/etc/systemd/system/nvidia-cdi-refresh.service", REFRESH)
        for name in ("nvidia-dcgm", "openfleet-stopped"):
            self.write(f"/etc/systemd/system/{name}.service", LISTER)
        host.check_output("mkdir -p /etc/cdi && systemctl daemon-reload")
        host.check_output("systemctl enable --now --quiet nvidia-cdi-refresh nvidia-dcgm")
        host.check_output(f"nvidia-ctk cdi generate --device-name-strategy=type-index --output={LASTING}")

    def write(self, path: str, text: str, mode: str = "644") -> None:
        self.host.check_output(
            f"mkdir -p {Path(path).parent} && printf %s {shlex.quote(text)} >{path} && chmod {mode} {path}"
        )

    def follow(self, *arguments: str):
        return self.host.run(
            f"PYTHONPATH=/usr/local/bin/gpu-layout timeout 300 python3 -c {shlex.quote(FOLLOW)} {shlex.join(arguments)}"
        )

    def take_gpu_2_apart(self) -> None:
        """Change the MIG devices of GPU 2 without the collection."""
        self.host.check_output("nvidia-smi mig -i 2 -dci && nvidia-smi mig -i 2 -dgi")

    def lists_gpu_2(self) -> list[bool]:
        """Return whether three lists contain the MIG devices of GPU 2.

        The lists are the persistent CDI specification, the temporary one, and the list of the service.
        """
        return [
            "mig2:0" in self.host.check_output(f"cat {LASTING}"),
            '"2:0"' in self.host.check_output(f"cat {PASSING}"),
            "MIG" in self.host.check_output("cat /run/listed").partition("GPU 2:")[2].partition("GPU 3:")[0],
        ]

    def remove(self) -> None:
        units = "nvidia-cdi-refresh nvidia-dcgm openfleet-stopped"
        self.host.run(f"systemctl disable --now --quiet {units}; systemctl reset-failed {units}")
        self.host.run(
            "find /etc/cdi -type f ! -name 'openfleet-mps-*' -delete; rm -rf /run/cdi /usr/bin/nvidia-ctk /run/listed /run/refuse"
        )
        self.host.run("cd /etc/systemd/system && rm -f " + " ".join(f"{unit}.service" for unit in units.split()))
        self.host.run(f"systemctl daemon-reload; systemctl restart {BOOT}")


@pytest.fixture
def clients(lab_host):
    host = lab_host("h100")
    if not host.file(f"/etc/systemd/system/{BOOT}").exists:
        pytest.fail(f"lab host h100 has no {BOOT}: run site.yml on it")
    clients = Clients(host)
    yield clients
    clients.remove()


def test_services_list_current_devices(clients):
    assert clients.lists_gpu_2() == [True, True, True]
    clients.take_gpu_2_apart()
    # Without the collection, neither the specifications nor the service notice the change. This is the control for the
    # checks below.
    assert clients.lists_gpu_2() == [True, True, True]
    done = clients.follow("once", "nvidia-dcgm", "openfleet-stopped", "absent.service")
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines() == [
        "nvidia-cdi-refresh.service restarted",
        f"CDI: {LASTING} written again",
        "nvidia-dcgm.service restarted",
    ]
    assert clients.lists_gpu_2() == [False, False, False]
    assert clients.host.run("systemctl is-active openfleet-stopped").stdout.strip() == "inactive"


def test_service_that_fails_to_start_is_reported_and_started_by_the_next_run(clients):
    clients.host.check_output("touch /run/refuse")
    done = clients.follow("once", "nvidia-dcgm.service")
    assert done.rc == 1
    assert done.stderr.startswith("nvidia-dcgm.service: its devices have changed") and "journalctl" in done.stderr
    assert "done: nvidia-cdi-refresh.service restarted" in done.stderr
    clients.host.check_output("rm /run/refuse")
    assert "nvidia-dcgm.service restarted" in clients.follow("again", "nvidia-dcgm.service").stdout.splitlines()
    assert clients.host.check_output("systemctl is-active nvidia-dcgm") == "active"


def test_gpu_layout_updates_services_after_changed_devices(clients):
    """Run `gpu-layout apply` for a changed layout, then again, and then as a dry run."""
    layout = "/etc/openfleet-gpu/layout.json"
    assert (
        clients.host.check_output(f"gpu-layout apply --layout {layout}").splitlines()[-1].startswith("Done: 0 created")
    )
    clients.take_gpu_2_apart()
    listed = clients.host.check_output("cat /run/listed")
    done = clients.host.check_output(f"gpu-layout apply --layout {layout}").splitlines()
    # The specification keeps its text, because the new device has the same placement and name. The last restarted unit
    # is the host's own exporter.
    assert done[-4:-1] == [
        f"{unit}.service restarted" for unit in ("nvidia-cdi-refresh", "nvidia-dcgm", "dcgm-exporter")
    ]
    assert clients.lists_gpu_2() == [True, True, True]
    assert clients.host.check_output("cat /run/listed") != listed, "the UUID is another one"


def test_run_updates_services_after_a_failed_update(clients):
    clients.host.check_output("touch /run/refuse")
    clients.take_gpu_2_apart()
    failed = clients.host.run("gpu-layout apply --json")
    assert failed.rc == 1
    assert "nvidia-dcgm.service: its devices have changed" in failed.stderr
    assert '"outcome": "new"' in failed.stdout
    assert clients.host.check_output("nvidia-smi -L").count("MIG 1g.10gb ") == 7, "the layout is applied"
    clients.host.check_output("rm /run/refuse")
    assert "nvidia-dcgm.service restarted" in clients.host.check_output("gpu-layout apply")
    assert clients.host.check_output("systemctl is-active nvidia-dcgm") == "active"
    assert "restarted" not in clients.host.check_output("gpu-layout apply")


def without_gpu_2(clients) -> None:
    clients.take_gpu_2_apart()
    assert clients.follow("once", "nvidia-dcgm.service").rc == 0
    assert clients.lists_gpu_2() == [False, False, False]


def test_boot_unit_does_not_wait_for_dependent_services(clients):
    without_gpu_2(clients)
    clients.host.check_output(f"timeout 300 systemctl restart {BOOT}")
    log = clients.host.check_output(f"journalctl --unit {BOOT} --output=cat --lines=20 --no-pager")
    assert "restart of nvidia-cdi-refresh.service queued in systemd" in log
    # From here on, systemd carries out the requested restart.
    deadline = time.monotonic() + BOOT_SECONDS
    while clients.lists_gpu_2() != [True, True, True]:
        assert time.monotonic() < deadline, clients.lists_gpu_2()
        time.sleep(0.2)


def test_services_list_current_devices_after_a_reboot(clients):
    without_gpu_2(clients)
    reboot(clients.host)
    assert describe_failures(runner(clients.host)) == ""
    assert clients.lists_gpu_2() == [True, True, True]
