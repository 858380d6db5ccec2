# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the owners, protected holders and limits of keep requests.

The tests use real processes in simulated cgroups.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import start_ticks
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import keeps
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import owner as keep_owner
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import request as keep_request
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import server as keep_server
from ansible_collections.openfleet.gpu.plugins.module_utils.keep.keeps import Keep, KeepError, kept
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from tests.unit.peer_hosts import Processes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="processes of several users are started as root")

ALICE, BOB, ROOT = 61001, 61002, 0
ID, OTHER_ID = "c0ffee" + "0" * 58, "decade" + "0" * 58
UNIT = "/system.slice/notebook.service"
DOCKER = "/system.slice/docker-%s.scope" % ID
ROOTLESS = "/user.slice/user-61001.slice/user@61001.service/user.slice/libpod-%s.scope" % ID
SETTINGS = keep_request.Settings(7 * 86400, ("daemon",), "/nowhere")


@pytest.fixture
def host(tmp_path, monkeypatch):
    made = Host(tmp_path, monkeypatch)
    yield made
    made.close()


class Host:
    """A host with processes that hold a GPU."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.processes = Processes(folder / "proc", monkeypatch, peer)
        self.main = folder / "main"
        systemctl = folder / "bin/systemctl"
        systemctl.parent.mkdir()
        systemctl.write_text("#!/bin/sh\necho MainPID=$(cat %s)\n" % self.main)
        systemctl.chmod(0o755)
        monkeypatch.setenv("PATH", "%s:%s" % (systemctl.parent, os.environ["PATH"]))
        self.main.write_text("0")
        self.started: list[subprocess.Popen] = []

    def holder(self, cgroup: str, user: int, name: str | None, main: bool = True, **more) -> Holder:
        process = subprocess.Popen(["sleep", "600"], user=user, group=user, extra_groups=[])
        self.started.append(process)
        self.processes.add(process.pid, cgroup)
        if main:
            self.main.write_text(str(process.pid))
        ticks = start_ticks(Path("/proc/%d/stat" % process.pid).read_text())
        return Holder(
            "GPU-0", None, "process", "x", pid=process.pid, unit_or_container=name, started_ticks=ticks, **more
        )

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


def keep_of(target: keep_owner.Target, uid: int = ALICE, until: float = 2e9) -> Keep:
    return Keep(target.kind, target.name, target.identity, uid, "alice", 1e9, until)


@pytest.mark.parametrize("name", ["notebook", "notebook.service"])
def test_unit_belongs_to_the_user_of_its_main_process(host, name):
    target = keep_owner.find(name, [host.holder(UNIT, ALICE, "notebook.service")])
    assert target == keep_owner.Target("unit", "notebook.service", "notebook.service", ALICE)


def test_lease_belongs_to_the_user_of_its_processes(host):
    name = "openfleet-gpu-lease-7.scope"
    cgroup = "/openfleet.slice/openfleet-gpu-leases-61002.slice/" + name
    target = keep_owner.find(name, [host.holder(cgroup, BOB, name, main=False)])
    assert target == keep_owner.Target("unit", name, name, BOB)
    kept_lease = keep_of(target)
    assert kept("unit", name, [], [kept_lease]) == kept_lease


def test_foreign_process_in_a_unit_does_not_change_its_owner(host):
    mine = host.holder(UNIT, ALICE, "notebook.service")
    theirs = host.holder(UNIT, BOB, "notebook.service", main=False)
    assert keep_owner.find("notebook", [theirs, mine]).owner == ALICE


def test_unit_of_root_belongs_to_root_and_its_processes_to_their_users(host):
    host.holder(UNIT, ROOT, "notebook.service")
    theirs = host.holder(UNIT, BOB, "notebook.service", main=False)
    assert keep_owner.find("notebook", [theirs]).owner == ROOT
    assert keep_owner.find(str(theirs.pid), [theirs]).owner == BOB


def test_user_cgroup_with_the_name_of_a_unit_is_not_the_unit(host):
    """Refuse a unit whose main process has moved to another cgroup."""
    mine = host.holder("/user.slice/user-61001.slice/user@61001.service/notebook.service", ALICE, "user@61001.service")
    with pytest.raises(KeepError, match="no service or container of this name"):
        keep_owner.find("notebook.service", [mine])
    with pytest.raises(KeepError, match="its owner is not known"):
        keep_owner.find("other", [host.holder(UNIT, ALICE, "other.service")])


@pytest.mark.parametrize(
    ("cgroup", "name", "owner"),
    [
        (DOCKER, "docker container lab", ROOT),
        (DOCKER.replace("docker-", "libpod-"), "podman container lab", ROOT),
        (ROOTLESS, "podman@61001 container lab", ALICE),
    ],
)
def test_container_belongs_to_the_user_of_its_engine(host, cgroup, name, owner):
    inside = host.holder(cgroup, BOB, name)
    target = keep_owner.find("lab", [inside])
    assert (target.kind, target.name, target.identity, target.owner) == ("container", name, ID, owner)
    assert keep_owner.find(str(inside.pid), [inside]).owner == owner


def test_equal_short_names_are_distinguished_by_full_names(host):
    both = [
        host.holder(DOCKER, ROOT, "docker container lab"),
        host.holder(ROOTLESS, ALICE, "podman@61001 container lab"),
    ]
    with pytest.raises(KeepError) as raised:
        keep_owner.find("lab", both)
    assert '"docker container lab", "podman@61001 container lab"' in str(raised.value)
    assert keep_owner.find("podman@61001 container lab", both).owner == ALICE


def test_process_with_several_user_ids_belongs_to_root(host):
    process = subprocess.Popen(
        [sys.executable, "-c", "import os\nos.setresuid(61001, 0, 0)\nprint('on', flush=True)\ninput()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    host.started.append(process)
    assert process.stdout.readline() == b"on\n"
    host.processes.add(process.pid, "/user.slice")
    ticks = start_ticks(Path("/proc/%d/stat" % process.pid).read_text())
    holder = Holder("GPU-0", None, "process", "x", pid=process.pid, started_ticks=ticks)
    assert keep_owner.find(str(process.pid), [holder]).owner == ROOT
    process.stdin.close()
    process.stdout.close()


def test_keep_is_bound_to_its_process(host):
    unit = host.holder(UNIT, ALICE, "notebook.service")
    inside = host.holder(DOCKER, ROOT, "docker container lab", main=False)
    of_unit, of_container, of_process = (
        keep_of(keep_owner.find(name, [unit, inside])) for name in ("notebook", "lab", str(unit.pid))
    )
    assert kept("unit", "notebook.service", [unit], [of_unit]) == of_unit
    assert kept("unit", "notebook.service", [unit], [of_process]) == of_process
    assert kept("container", "lab", [inside], [of_container]) == of_container
    assert kept("unit", "notebook.service", [unit], [of_container]) is None
    assert kept("unit", "other.service", [unit], [of_unit]) is None
    # The container was recreated. The pid now belongs to a process in the new container.
    host.processes.add(inside.pid, DOCKER.replace(ID, OTHER_ID))
    assert kept("container", "lab", [inside], [of_container]) is None
    later = Holder("GPU-0", None, "process", "x", pid=unit.pid, started_ticks=unit.started_ticks + 1)
    assert kept("unit", "x.service", [later], [of_process]) is None
    assert kept("container", "lab", [later], [Keep("container", "lab", "", 0, "root", 1.0, 2e9)]) is None


def test_ended_process_is_no_longer_kept(tmp_path):
    made = Keep("unit", "x.service", "x.service", ALICE, "alice", 1.0, 100.0)
    keeps.write(str(tmp_path), [made])
    assert keeps.read(str(tmp_path), 99.0) == [made] and keeps.read(str(tmp_path), 100.0) == []
    assert (tmp_path / "reclaim/keeps.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9}', '{"schema": 1, "keeps": [{"kind": "unit"}]}'])
def test_damaged_file_is_an_error(tmp_path, text):
    (tmp_path / "reclaim").mkdir()
    (tmp_path / "reclaim/keeps.json").write_text(text)
    with pytest.raises(KeepError, match=r"keeps\.json.*Remove it"):
        keeps.read(str(tmp_path), 0.0)


def test_keeps_are_limited_per_user_and_host_and_renewals_are_free():
    of_alice = [Keep("unit", "%d" % n, "%d" % n, ALICE, "alice", 1.0, 2e9) for n in range(keeps.MOST_OF_USER)]
    with pytest.raises(KeepError, match="alice has 16 keeps already"):
        keeps.with_keep(of_alice, Keep("unit", "x", "x", ALICE, "alice", 1.0, 2e9))
    assert len(keeps.with_keep(of_alice, Keep("unit", "3", "3", ALICE, "alice", 1.0, 3e9))) == keeps.MOST_OF_USER
    full = [Keep("unit", "%d" % n, "%d" % n, ROOT, "root", 1.0, 2e9) for n in range(keeps.MOST)]
    with pytest.raises(KeepError, match="this host has 256 keeps already"):
        keeps.with_keep(full, Keep("unit", "x", "x", ALICE, "alice", 1.0, 2e9))


def test_keep_is_limited_to_the_hosts_maximum(tmp_path):
    settings = keep_request.Settings(86400, (), str(tmp_path))
    request = keep_request.parse(json.dumps({"op": "keep", "name": "x", "seconds": 86401}).encode())
    with pytest.raises(KeepError, match=r"lasts at most 1 days.*The latest end now is"):
        keep_request.answer(request, ROOT, settings, list)


def test_administrators_are_set_on_the_host():
    assert keep_owner.is_administrator(ROOT, [])
    assert keep_owner.is_administrator(1, ["daemon"]) and not keep_owner.is_administrator(1, ["bin", "of-no-host"])
    assert not keep_owner.is_administrator(ALICE, ["daemon", "root"])


@pytest.mark.parametrize(
    ("cgroup", "problem"),
    [(UNIT, ""), (DOCKER, "requests from a container are refused"), (ROOTLESS, "requests from a container")],
)
def test_requests_from_containers_are_refused(host, cgroup, problem):
    """Refuse requests of containers, in which root has the user ID of the host's root."""
    host.processes.add(os.getpid(), cgroup)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if not problem:
            assert keep_server.caller(ours) == os.geteuid()
            return
        with pytest.raises(FleetError, match=problem):
            keep_server.caller(ours)


@pytest.mark.parametrize(
    ("number", "taken"),
    [(errno.EINVAL, False), (errno.ESRCH, False), (errno.EMFILE, False), (errno.ENOPROTOOPT, True)],
    ids=["has-ended", "no-process", "no-descriptors", "before-linux-6.5"],
)
def test_process_without_pidfd_has_ended(number, taken):
    """Treat a process as ended if it has no pidfd.

    Linux 6.5 to 6.15 returns none for an ended process, whose pid may be reused.
    """

    class OlderKernel:
        def getsockopt(self, level, option, size):
            if option == keep_server._SO_PEERPIDFD:
                raise OSError(number, os.strerror(number))
            return ours.getsockopt(level, option, size)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        if taken:
            assert keep_server.caller(OlderKernel()) == os.geteuid()
        else:
            with pytest.raises(KeepError, match="has ended"):
                keep_server.caller(OlderKernel())


@pytest.mark.parametrize("text", ["3", "d", "0h", "3 d", "-3d", "3D", "٣d", "9999999d", "3d\n3d"])
def test_invalid_duration_is_refused(text):
    with pytest.raises(KeepError, match="not a duration"):
        keeps.duration(text)


def test_durations_are_seconds():
    assert [keeps.duration(text) for text in ("30m", "12h", "3d", "1w")] == [1800, 43200, 259200, 604800]
