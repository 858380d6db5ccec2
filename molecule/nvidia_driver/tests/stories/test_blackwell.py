# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Blackwell board with IMEX, on a host whose initramfs dracut makes: brought, changed, and taken away by reset.yml.

In this order: each test takes the host as the one before left it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab_fixtures import REPOSITORY, reboot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from package_changes import differences, foretold

BOARD = "blackwell"
ASKED = {"nvidia_driver_version": "580.105.08"}
DOMAIN = {**ASKED, "nvidia_driver_imex": True, "nvidia_driver_imex_nodes": ["10.0.0.1"]}
IMAGE = "/boot/initrd.img-$(uname -r)"
FOLDERS = "$(ls -d /boot /etc /opt /root /usr /var)"
TRACES = "find %s -xdev '(' -iname '*nvidia*' -o -iname '*nvlsm*' -o -iname '*openfleet*' ')'" % FOLDERS


@pytest.fixture(scope="module")
def bare(lab_host):
    """What had a name like the driver's before it came: Debian's tools in the image."""
    return set(lab_host(BOARD).check_output(TRACES).splitlines())


def test_a_bare_board_gets_what_the_dry_run_said(bare, play, state_of):
    before = state_of(BOARD)
    dry = play(BOARD, "--check", **ASKED)
    assert state_of(BOARD) == before
    wet = play(BOARD, **ASKED)
    assert (dry.failed, wet.failed) == ("", "")
    assert dry.planned == wet.done
    assert foretold(dry.planned) == differences(before, state_of(BOARD))


def test_fabric_manager_finds_its_subnet_manager_also_after_a_boot(lab_host, state_of):
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


def test_dracuts_initramfs_keeps_nouveau_away(lab_host):
    host = lab_host(BOARD)
    assert "etc/modprobe.d/openfleet-nvidia-driver.conf" in host.check_output("lsinitrd " + IMAGE)
    assert "blacklist nouveau" in host.check_output("lsinitrd -f etc/modprobe.d/openfleet-nvidia-driver.conf " + IMAGE)


def test_imex_comes_when_it_is_asked_for_and_follows_its_nodes(play, lab_host, state_of):
    host = lab_host(BOARD)
    assert "nvidia-imex" not in state_of(BOARD).packages
    assert play(BOARD, **DOMAIN).failed == ""
    assert state_of(BOARD).packages["nvidia-imex"] == "580.105.08-1"
    assert host.service("nvidia-imex").is_running
    assert host.service("nvidia-imex").is_enabled
    former = host.check_output("systemctl show --property MainPID nvidia-imex")
    moved = {**DOMAIN, "nvidia_driver_imex_nodes": ["10.0.0.1", "10.0.0.2"]}
    played = play(BOARD, **moved)
    assert played.done == (
        "write /etc/nvidia-imex/nodes_config.cfg",
        "restart nvidia-imex.service, whose nodes change",
    )
    assert host.file("/etc/nvidia-imex/nodes_config.cfg").content_string == "10.0.0.1\n10.0.0.2\n"
    assert host.service("nvidia-imex").is_running
    assert host.check_output("systemctl show --property MainPID nvidia-imex") != former
    assert host.service("client").is_running
    assert not play(BOARD, **moved).changed


def test_reset_leaves_nothing_but_what_debian_brought(bare, play, lab_host, state_of):
    host, before = lab_host(BOARD), state_of(BOARD)
    layout = [{"gpus": "all", "sharing": "exclusive"}]
    reset = REPOSITORY / "playbooks" / "reset.yml"
    played = play(BOARD, playbook=reset, nvidia_driver_state="absent", gpu_layout=layout)
    assert played.failed == ""
    after = state_of(BOARD)
    assert (after.loaded, after.held, after.broken) == ("", (), "")
    gone = {name for name, version in differences(before, after).items() if version is None}
    assert {"nvidia-driver-cuda", "nvidia-imex", "nvlsm", "nvidia-fabricmanager"} <= gone
    # Others may have come to need them.
    assert {"dkms", "infiniband-diags"} <= after.packages.keys()
    left = set(host.check_output(TRACES).splitlines()) - bare
    assert left == set()
    assert "cuda" not in host.check_output("ls /var/lib/apt/lists")
    assert "openfleet" not in host.check_output("lsinitrd " + IMAGE)
    assert not host.file("/sys/module/ib_umad").exists
    assert host.service("client").is_running
