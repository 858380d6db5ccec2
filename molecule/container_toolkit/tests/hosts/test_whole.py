# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run all roles on a bare host: site.yml, a driver change, and reset.yml.

The tests run in order, and each test starts with the state that the previous test left.
"""

from __future__ import annotations

import json
import re

import pytest
from role_runs import SCENARIO

from tests.lab.fleet import Run, play_and_read

# These tests belong to the thorough run, because other scenarios do similar things. The scenario bundle also installs
# all roles on a bare host, and the roles' own scenarios test the removal.
pytestmark = pytest.mark.thorough

SPECIFICATION = "/var/run/cdi/nvidia.yaml"
FIRST, SECOND = "580.95.05", "580.105.08"
#: Files that any of the roles writes.
OURS = (
    "find / -xdev '(' -path /proc -o -path /sys -o -path /srv -o -path /tmp ')' -prune -o "
    "'(' -iname '*openfleet*' -o -iname '*nvidia*' -o -iname '*gpu-layout*' -o -iname '*pynvml*' ')' -print"
)


def play(playbook: str, **variables) -> Run:
    """Run a playbook on this host like an operator."""
    inventory = str(SCENARIO / "inventory")
    return play_and_read(
        playbook, "whole.json", "--inventory", inventory, "--limit", "whole", "--extra-vars", json.dumps(variables)
    )


def listed(host) -> set[str]:
    return set(re.findall(r'- name: "?([^"\s]+)', host.check_output(f"cat {SPECIFICATION}")))


def gpus(host) -> list[str]:
    return re.findall(r"^(GPU \d|  MIG \S+)", host.check_output("nvidia-smi -L"), re.MULTILINE)


@pytest.fixture(scope="module")
def before(whole) -> dict[str, set[str]]:
    """Return the state of the bare host before the first run."""
    return {
        "files": set(whole.check_output(OURS).split("\n")),
        "packages": set(whole.check_output("dpkg-query -W -f '${Package}\\n'").split()),
        "configured": set(whole.check_output("cat /etc/docker/daemon.json").split("\n")),
    }


def test_one_run_installs_driver_toolkit_and_layout(whole, before):
    assert "libnvidia-container1" not in before["packages"]
    play("site.yml")
    assert whole.check_output("cat /sys/module/nvidia/version") == FIRST
    assert whole.package("nvidia-container-toolkit").version == "1.18.2-1"
    assert gpus(whole) == ["GPU 0", "  MIG 3g.40gb", "  MIG 1g.10gb", "  MIG 1g.10gb", "GPU 1"]
    # The run applies the layout after it installs the toolkit, and the specification contains the layout's devices.
    assert {"0:0", "0:1", "0:2", "1", "all"} <= listed(whole) and "0" not in listed(whole)
    assert f"libnvidia-ml.so.{FIRST}" in whole.check_output(f"cat {SPECIFICATION}")
    assert "nvidia" in json.loads(whole.check_output("cat /etc/docker/daemon.json"))["runtimes"]


def test_new_driver_gets_a_new_specification_and_second_run_changes_nothing(whole):
    """Reboot for the new driver, because the old module is loaded.

    After the reboot, the layout is restored, and the specification lists its devices.
    """
    run = play("site.yml", nvidia_driver_version=SECOND)
    assert any(change.task.endswith("Reboot the host") for change in run.changes)
    assert whole.check_output("cat /sys/module/nvidia/version") == SECOND
    text = whole.check_output(f"cat {SPECIFICATION}")
    assert f"libnvidia-ml.so.{SECOND}" in text and FIRST not in text
    assert {"0:0", "0:1", "0:2", "1", "all"} <= listed(whole)
    assert gpus(whole) == ["GPU 0", "  MIG 3g.40gb", "  MIG 1g.10gb", "  MIG 1g.10gb", "GPU 1"]
    specification = whole.check_output(f"stat -c %Y.%i {SPECIFICATION}")
    assert play("site.yml", nvidia_driver_version=SECOND).changes == ()
    assert whole.check_output(f"stat -c %Y.%i {SPECIFICATION}") == specification


def test_reset_removes_everything(whole, before):
    play("playbooks/reset.yml", nvidia_driver_state="absent")
    now = set(whole.check_output("dpkg-query -W -f '${Package}\\n'").split())
    # Dependencies of Debian's own packages (for example dkms) belong to Debian and stay.
    assert {name for name in now - before["packages"] if "nvidia" in name or "cuda" in name} == set()
    assert whole.check_output("apt-mark showhold") == ""
    left = whole.check_output(OURS).split("\n")
    assert set(left) - before["files"] == set()
    assert not whole.file("/sys/module/nvidia").exists
    assert "nvidia" not in whole.check_output("cat /etc/docker/daemon.json")
    assert whole.run("systemctl list-unit-files --no-legend '*nvidia*' '*gpu-layout*'").stdout == ""
    assert play("playbooks/reset.yml", nvidia_driver_state="absent").changes == ()
    assert set(whole.check_output(OURS).split("\n")) - before["files"] == set()
