# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find containers with a GPU: their names, owners, start times, and monitoring."""

from __future__ import annotations

import os
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import containers as holders_containers
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, instance, no_tools

ID = "3f2a" * 16
#: A GPU with one instance. In the driver's numbering, nvidia-cap12 is the node that gives access to this instance.
OF = host(gpu(0, instance(1, 0)))


class Containers:
    """A host whose processes are in containers with their own /dev."""

    def __init__(self, folder):
        self.proc = Proc(folder / "proc")
        self.dev = folder / "dev"
        for node in ("nvidia0", "nvidia-caps/nvidia-cap12"):
            (self.dev / node).parent.mkdir(parents=True, exist_ok=True)
            (self.dev / node).touch()

    def start(self, pid, name, *nodes, cgroup="0::/system.slice/docker-%s.scope" % ID, namespace="mnt:[7]", opened=()):
        self.proc.process(pid, name, *(self.dev / node for node in opened), cgroup=cgroup)
        (self.proc.folder / str(pid) / "ns").mkdir()
        (self.proc.folder / str(pid) / "ns" / "mnt").symlink_to(namespace)
        for node in nodes:
            path = self.proc.folder / str(pid) / "root" / "dev" / node
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def find(self, run=no_tools):
        return find_holders(OF, str(self.proc.folder), str(self.dev), run)


@pytest.fixture
def there(tmp_path):
    return Containers(tmp_path)


def docker(said, status=0):
    """Return a replacement for docker that lists these containers."""

    def run(command, **_options):
        if command[:2] != ["docker", "ps"]:
            raise FileNotFoundError(2, "No such file or directory", command[0])
        return subprocess.CompletedProcess(command, status, said, "Cannot connect" if status else "")

    return run


def test_docker_containers_have_names(there):
    there.start(70, "train", "nvidia0")
    (holder,) = there.find(docker("%s billing-api\n%s other\n" % (ID, "b" * 64)))
    assert holder.unit_or_container == "docker container billing-api"
    assert holder.who == "docker container billing-api (pid 70: train --flag), which was given the device"


def test_legacy_link_is_no_name(there):
    there.start(70, "train", "nvidia0")
    (holder,) = there.find(docker("%s web/db,db\n" % ID))
    assert holder.unit_or_container == "docker container db"


@pytest.mark.parametrize("run", [no_tools, docker("", 1), docker("rubbish\n"), docker("%s\n" % ID)])
def test_id_is_used_if_docker_gives_no_name(there, run):
    there.start(70, "train", "nvidia0")
    (holder,) = there.find(run)
    assert holder.unit_or_container == "docker container 3f2a3f2a3f2a"


def test_docker_is_queried_only_for_its_containers(there):
    def asked(command, **_options):
        assert command[0] != "docker"
        raise FileNotFoundError(2, "No such file or directory", command[0])

    there.start(70, "train", "nvidia0", cgroup="0::/machine.slice/libpod-%s.scope/container" % ID)
    (holder,) = there.find(asked)
    assert holder.unit_or_container == "podman container 3f2a3f2a3f2a"


@pytest.mark.parametrize(("owner", "name"), [(0, "podman container web"), (1000, "podman@1000 container web")])
def test_podman_containers_have_names_and_users(there, owner, name):
    there.start(70, "train", "nvidia0", cgroup="0::/user.slice/user-1000.slice/session-3.scope")
    there.proc.process(60, "conmon")
    there.proc.write("60/cmdline", "conmon\0-n\0web\0")
    there.proc.write("60/status", "Name:\tconmon\nPPid:\t1\nUid:\t%d\t%d\t%d\t%d\n" % ((owner,) * 4))
    there.proc.write("70/status", "Name:\ttrain\nPPid:\t60\nUid:\t0\t0\t0\t0\n")
    (holder,) = there.find()
    assert holder.unit_or_container == name


def test_exporter_container_only_watches(there):
    there.start(70, "dcgm-exporter", "nvidia0", "nvidia-caps/nvidia-cap12")
    (holder,) = there.find(docker("%s gpu-dcgm-exporter-1\n" % ID))
    assert (holder.kind, holder.gpu_instance_id, holder.watches) == ("container", 1, True)
    assert (holder.blocks(), holder.blocks(1)) == (True, False)
    assert holder.who.endswith("which was given the device and only watches it")


def test_exporter_container_with_other_processes_is_a_holder(there):
    there.start(70, "dcgm-exporter", "nvidia0", "nvidia-caps/nvidia-cap12")
    there.start(71, "python3")
    (holder,) = there.find()
    assert not holder.watches and holder.blocks(1)


POD = "0::/kubepods.slice/kubepods-pod3f2a3f2a_3f2a_3f2a_3f2a_3f2a3f2a3f2a.slice/cri-containerd-%s.scope" % ID


@pytest.mark.parametrize(
    ("program", "cgroup", "run", "watches"),
    [
        ("dcgm-exporter", None, docker("%s train\n" % ID), False),
        ("dcgm-exporter", None, no_tools, False),
        ("nvidia-smi", None, docker("%s dcgm-exporter\n" % ID), False),
        ("dcgm-exporter", None, docker("%s dcgm-exporter\n" % ID), True),
        ("nvidia-device-plugin", POD, no_tools, True),
        ("nvidia-smi", POD, no_tools, False),
        ("dcgm-exporter", "0::/lxc.payload.train", no_tools, False),
        ("dcgm-exporter", "0::/system.slice/nerdctl-%s.scope" % ID, no_tools, False),
        ("dcgm-exporter", "0::/system.slice/dcgm-exporter.service/libpod-payload-x", no_tools, True),
    ],
)
@pytest.mark.parametrize("opened", [(), ("nvidia0",)], ids=["given", "open"])
def test_program_name_alone_is_not_monitoring(there, program, cgroup, run, watches, opened):
    """Do not take a container for monitoring because of its program's name.

    Root in a container can choose file names. Without a user namespace, root has the same user ID as the host's root.
    """
    there.start(70, program, "nvidia0", opened=opened, **({"cgroup": cgroup} if cgroup else {}))
    found = there.find(run)
    assert {holder.watches for holder in found} == {watches}
    assert all(("watches" in holder.who) == watches for holder in found)
    if not watches:
        assert all(holder.who.endswith(("given the device", "its device node open")) for holder in found)


def test_exporter_in_an_instance_blocks_it(there):
    caps = ("nvidia0", "nvidia-caps/nvidia-cap12")
    there.start(70, "dcgm-exporter", *caps, opened=caps)
    (holder,) = there.find()
    assert (holder.kind, holder.gpu_instance_id) == ("device_handle", 1) and holder.blocks(1)


@pytest.mark.parametrize(("mounts", "counts"), [(10, False), (5000, True)])
def test_mounts_of_a_privileged_container_are_read_up_to_a_limit(there, monkeypatch, mounts, counts):
    """The driver may be mounted after the last mount that is read, so the rest is unknown."""
    monkeypatch.setattr(holders_containers, "_MOST_MOUNTS", 100_000, raising=False)
    monkeypatch.setattr(holders_containers, "_has_every_device", lambda dev, names: True)
    there.start(70, "storage", "nvidia0")
    there.proc.write("70/mountinfo", "40 22 0:50 / /mnt rw - tmpfs tmpfs rw\n" * mounts)
    assert bool(there.find()) == counts


def test_start_time_is_reported(there):
    there.start(70, "train", "nvidia0")
    assert there.find()[0].started_seconds is None
    there.proc.write("stat", "cpu 0 0\nbtime 1795000000\n")
    # In /proc/PID/stat, field 22 is the start in hundredths of a second after the boot. The process name in field 2 may
    # contain blanks and brackets.
    there.proc.write("70/stat", "70 (a (name) S) S %s 360000 %s" % (" ".join(["0"] * 18), " ".join(["0"] * 30)))
    assert there.find()[0].started_seconds == 1795003600.0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads every /dev")
def test_unreadable_dev_holds_nothing(there):
    there.start(70, "chroot", cgroup="0::/user.slice/user-1000.slice/session-3.scope")
    (there.proc.folder / "70/root").mkdir()
    (there.proc.folder / "70/root/dev").symlink_to("dev")
    assert there.find() == ()
