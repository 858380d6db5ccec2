# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a Blackwell board with IMEX on a host with dracut.

The driver is installed, changed, and removed by reset.yml. The tests run in order, and each test starts with the state
that the previous test left.
"""

from __future__ import annotations

import json

import pytest
from driver_runs import INVENTORY, LOOK, Ask, State, play
from package_changes import differences, foretold

from tests.lab.fleet import play_and_read
from tests.lab.lab_fixtures import REPOSITORY, reboot

BOARD = "blackwell"
ASKED = {"nvidia_driver_version": "580.105.08"}
DOMAIN = {**ASKED, "nvidia_driver_imex": True, "nvidia_driver_imex_nodes": ["10.0.0.1"]}
IMAGE = "/boot/initrd.img-$(uname -r)"
FOLDERS = "$(ls -d /boot /etc /opt /root /usr /var)"
TRACES = "find %s -xdev '(' -iname '*nvidia*' -o -iname '*nvlsm*' -o -iname '*openfleet*' ')'" % FOLDERS


#: Paths that a dry run must not write.
WRITTEN = [
    "/etc/apt/sources.list.d/openfleet-nvidia-driver.sources",
    "/etc/apt/preferences.d/openfleet-nvidia-driver",
    "/etc/apt/keyrings/openfleet-nvidia-driver.gpg",
    "/etc/modprobe.d/openfleet-nvidia-driver.conf",
    "/etc/modules-load.d/openfleet-nvidia-driver.conf",
    "/etc/dracut.conf.d/openfleet-nvidia-driver.conf",
    "/var/lib/openfleet-gpu",
]


@pytest.fixture(scope="module")
def bare(lab_host):
    """Return the image's Debian packages that are named like driver packages."""
    return set(lab_host(BOARD).check_output(TRACES).splitlines())


@pytest.fixture(scope="module")
def dry(bare):
    """Run the role in check mode on the bare host."""
    (played,) = play(BOARD, Ask(ASKED, then=LOOK), check=True)
    return played


def test_dry_run_does_not_change_the_bare_host(bare, dry, lab_host):
    host = lab_host(BOARD)
    for path in WRITTEN:
        assert not host.file(path).exists, path
    assert not host.package("dkms").is_installed
    assert host.check_output("apt-mark showhold") == ""
    # The run fetched no lists or packages into the host's own folders, and left no other files.
    lists = "find /var/lib/apt/lists /var/cache/apt/archives -type f ! -name lock"
    assert host.check_output(lists) == ""
    assert host.check_output("find /tmp -name 'openfleet-*'") == ""
    assert set(host.check_output(TRACES).splitlines()) == bare


def test_bare_board_gets_the_predicted_packages(dry, state_of):
    before = state_of(BOARD)
    assert State.read(dry.seen) == before
    (wet,) = play(BOARD, Ask(ASKED, then=LOOK))
    assert dry.planned == wet.done
    assert foretold(dry.planned) == differences(before, State.read(wet.seen))


def test_fabric_manager_finds_its_subnet_manager_after_a_boot(lab_host, state_of):
    host = lab_host(BOARD)
    for booted in (False, True):
        if booted:
            reboot(host)
        assert host.service("nvidia-fabricmanager").is_running, booted
        assert host.service("nvidia-fabricmanager").is_enabled
        host.check_output("pgrep -f /opt/nvidia/nvlsm/sbin/nvlsm")
    packages = state_of(BOARD).packages
    assert packages["nvidia-fabricmanager"] == "580.105.08-1"
    assert packages["nvlsm"] == "2025.06.11-1"
    assert "nvlsm" in state_of(BOARD).held
    assert "infiniband-diags" not in state_of(BOARD).held


def test_dracuts_initramfs_excludes_nouveau(lab_host):
    host = lab_host(BOARD)
    assert "etc/modprobe.d/openfleet-nvidia-driver.conf" in host.check_output("lsinitrd " + IMAGE)
    assert "blacklist nouveau" in host.check_output("lsinitrd -f etc/modprobe.d/openfleet-nvidia-driver.conf " + IMAGE)


@pytest.mark.thorough
def test_imex_is_installed_on_request_and_follows_its_nodes(lab_host, state_of):
    host = lab_host(BOARD)
    assert "nvidia-imex" not in state_of(BOARD).packages
    process = "systemctl show --property MainPID nvidia-imex"
    moved = {**DOMAIN, "nvidia_driver_imex_nodes": ["10.0.0.1", "10.0.0.2"]}
    first, second, again = play(
        BOARD,
        Ask(DOMAIN, then=f"systemctl is-active nvidia-imex; systemctl is-enabled nvidia-imex; {process}"),
        Ask(moved),
        Ask(moved),
    )
    active, enabled, former = first.seen.splitlines()
    assert (active, enabled) == ("active", "enabled")
    assert state_of(BOARD).packages["nvidia-imex"] == "580.105.08-1"
    assert second.done == (
        "write /etc/nvidia-imex/nodes_config.cfg",
        "restart nvidia-imex.service, whose nodes change",
    )
    assert host.file("/etc/nvidia-imex/nodes_config.cfg").content_string == "10.0.0.1\n10.0.0.2\n"
    assert host.service("nvidia-imex").is_running
    assert host.check_output(process) != former
    assert host.service("client").is_running
    assert not again.changed


@pytest.mark.thorough
def test_reset_leaves_only_debians_packages(bare, lab_host, state_of):
    host, before = lab_host(BOARD), state_of(BOARD)
    variables = {"nvidia_driver_state": "absent", "gpu_layout": [{"gpus": "all", "sharing": "exclusive"}]}
    options = ["--inventory", str(INVENTORY), "--limit", BOARD, "--extra-vars", json.dumps(variables)]
    play_and_read(str(REPOSITORY / "playbooks" / "reset.yml"), "blackwell-reset.json", *options)
    after = state_of(BOARD)
    assert (after.loaded, after.held, after.broken) == ("", (), "")
    gone = {name for name, version in differences(before, after).items() if version is None}
    assert {"nvidia-driver-cuda", "nvlsm", "nvidia-fabricmanager"} <= gone
    assert "nvidia-imex" not in after.packages
    # These packages stay, because other software may need them by now.
    assert {"dkms", "infiniband-diags"} <= after.packages.keys()
    left = set(host.check_output(TRACES).splitlines()) - bare
    assert left == set()
    assert "cuda" not in host.check_output("ls /var/lib/apt/lists")
    assert "openfleet" not in host.check_output("lsinitrd " + IMAGE)
    assert not host.file("/sys/module/ib_umad").exists
    assert host.service("client").is_running
