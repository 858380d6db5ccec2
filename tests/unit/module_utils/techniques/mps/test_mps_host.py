# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a host's MPS daemons in a folder.

systemctl, journalctl and nvidia-cuda-mps-control are replaced. These tests cover cases that the lab cannot create:
servers and clients (which need a GPU), a boot, missing programs, and failures. molecule/sharing runs the real systemd
and daemon.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.terminate import end_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import mps as holders_mps
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import mps_control
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import files as mps_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import host as mps_host
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import observe as mps_observe
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import plan as mps_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import unit as mps_unit
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.host import MpsHost, adjustable
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsClient, MpsSeen
from tests.unit.module_utils.holders.holder_hosts import named, opened
from tests.unit.module_utils.techniques.mps.mps_hosts import DAEMON, DEVICES, GIB, OTHER, UNIT, Host, make_host


@pytest.fixture
def host(tmp_path):
    return make_host(tmp_path)


@pytest.fixture
def mps(host):
    return MpsHost(str(host.root), host)


def existing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# --- start and adjust -------------------------------------------------------------------------------------------------


def test_daemon_is_started_with_its_files(host, mps):
    mps.start(DAEMON, DEVICES)
    for path, text in {**mps_files.files(DAEMON, DEVICES), **mps_unit.shared_files(False)}.items():
        assert (host.root / path).read_text() == text
    mounted = ["daemon-reload", "enable --no-reload --now run-openfleet\\x2dmps-inference.mount"]
    assert host.called == ["daemon-reload", *mounted, "reset-failed -- " + UNIT, "restart -- " + UNIT]
    (seen,) = mps.observe()
    assert seen == MpsSeen(DAEMON, DEVICES, True, 9, (), (), 25.0, (2 * GIB, 2 * GIB), pipe_directory_limited=False)


def test_files_are_world_readable_for_any_umask(host, mps):
    former = os.umask(0o077)
    try:
        mps.start(DAEMON, DEVICES)
    finally:
        os.umask(former)
    for name in ("etc/openfleet-gpu/mps/inference.client.env", "etc/cdi/openfleet-mps-inference.json"):
        path = host.root / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize(("basic_target", "boot_unit"), [("inactive", "inactive"), ("active", "activating")])
def test_nothing_is_awaited_while_the_host_boots(host, mps, basic_target, boot_unit):
    host.basic_target, host.boot_unit = basic_target, boot_unit
    mps.start(DAEMON, DEVICES)
    assert host.called[-1] == "--no-block restart -- " + UNIT
    assert host.daemons == {}
    # The start job waits in the queue, so the daemon does not run yet. This is no problem to report.
    host.units[UNIT] = {"Job": "211"}
    shown = host.shown
    (seen,) = mps.observe()
    assert (seen.running, seen.problem) == (False, None)
    assert host.shown == shown + 2


def test_late_boot_is_awaited(host, mps):
    """Wait for the boot unit only, even if another unit delays the boot."""
    host.state = "starting"
    mps.start(DAEMON, DEVICES)
    assert host.called[-1] == "restart -- " + UNIT


@pytest.mark.parametrize(
    "state", [{"Job": "211"}, {"ActiveState": "activating", "Result": "signal"}, {"ActiveState": "failed", "Job": "7"}]
)
def test_starting_daemon_is_awaited(host, mps, monkeypatch, state):
    monkeypatch.setattr(mps_observe, "_COMING_SECONDS", 600)
    mps.start(DAEMON, DEVICES)
    active, host.units[UNIT] = host.units[UNIT], state
    host.until, host.coming = host.shown + 5, lambda: host.units.update({UNIT: active})
    (seen,) = mps.observe()
    assert (seen.running, seen.problem) == (True, None)


def test_daemon_that_never_starts_times_out(host, mps, monkeypatch):
    monkeypatch.setattr(mps_observe, "_COMING_SECONDS", 0)
    mps.start(DAEMON, DEVICES)
    host.units[UNIT] = {"ActiveState": "activating", "Result": "exit-code"}
    (seen,) = mps.observe()
    assert not seen.running and "is activating, result exit-code" in seen.problem


def test_new_limits_reach_the_daemon_and_its_servers(host, mps):
    mps.start(DAEMON, DEVICES)
    host.servers = {
        41: {"percentage": 25.0, "limits": {0: 2048, 1: 2048}, "clients": [], "busy": 2},
        42: {"percentage": 25.0, "limits": {0: 2048, 1: 2048}, "clients": [77]},
    }
    wanted = dataclasses.replace(DAEMON, active_thread_percentage=40, pinned_memory_limit_bytes=3 * GIB)
    mps.adjust(wanted, DEVICES)
    assert host.daemons["inference"] == {"percentage": 40.0, "limits": {0: 3072, 1: 3072}}
    assert all(s["percentage"] == 40 and s["limits"] == {0: 3072, 1: 3072} for s in host.servers.values())
    assert [word for word in host.called if word.startswith("restart")] == ["restart -- " + UNIT]
    (seen,) = mps.observe()
    assert (seen.daemon, seen.outdated, seen.problem) == (wanted, (), None)


def test_unresponsive_server_is_named_and_blocks_no_other(host, mps, monkeypatch):
    monkeypatch.setattr(mps_host, "_SERVER_SECONDS", 0)
    mps.start(DAEMON, DEVICES)
    before = {"percentage": 25.0, "limits": {0: 2048, 1: 2048}, "clients": []}
    host.servers = {41: dict(before, busy=10**6), 42: dict(before)}
    wanted = dataclasses.replace(DAEMON, active_thread_percentage=40)
    mps.adjust(wanted, DEVICES)
    (seen,) = mps.observe()
    assert (seen.daemon, seen.active_thread_percentage, seen.problem) == (wanted, 40, None)
    assert (seen.server_pids, seen.silent_server_pids) == ((41, 42), (41,))
    assert host.servers[42]["percentage"] == 40


def test_server_with_an_old_limit_is_detected_and_repaired(host, mps):
    """If a run is interrupted after it changed the daemon, servers keep the old limit."""
    mps.start(DAEMON, DEVICES)
    host.servers = {
        41: {"percentage": 25.0, "limits": {}, "clients": []},
        42: {"percentage": 60.0, "limits": {}, "clients": []},
    }
    (seen,) = mps.observe()
    assert (seen.active_thread_percentage, seen.problem) == (60, None)
    assert adjustable(seen, DAEMON, DEVICES)
    mps.adjust(DAEMON, DEVICES)
    (seen,) = mps.observe()
    assert seen.active_thread_percentage == 25
    assert host.servers[42] == {"percentage": 25.0, "limits": {0: 2048, 1: 2048}, "clients": []}


def test_rounded_limit_of_a_server_is_correct(host, mps):
    mps.start(DAEMON, DEVICES)
    host.servers = {41: {"percentage": 24.2, "limits": {}, "clients": []}}
    assert mps.observe()[0].active_thread_percentage == 25


def test_wrong_limit_of_the_daemon_is_detected_despite_a_correct_server(host, mps):
    mps.start(DAEMON, DEVICES)
    host.daemons["inference"]["percentage"] = 90.0
    host.servers = {41: {"percentage": 25.0, "limits": {}, "clients": []}}
    assert mps.observe()[0].active_thread_percentage == 90


def test_adjustable_settings():
    seen = MpsSeen(DAEMON, DEVICES, True, 9, (), (), 25.0, (2 * GIB, 2 * GIB))
    unlimited = dataclasses.replace(DAEMON, pinned_memory_limit_bytes=None)
    seen_unlimited = dataclasses.replace(seen, daemon=unlimited, pinned_memory_limits_bytes=(None, None))
    assert adjustable(seen, dataclasses.replace(DAEMON, active_thread_percentage=90, clients=1), DEVICES)
    assert adjustable(seen, dataclasses.replace(DAEMON, pinned_memory_limit_bytes=GIB), list(DEVICES))
    assert adjustable(seen_unlimited, DAEMON, DEVICES)
    assert adjustable(seen_unlimited, unlimited, DEVICES)
    # No command can change devices or their order, or remove a limit. A daemon that is stopped or unresponsive cannot
    # get new limits either.
    assert not adjustable(seen, DAEMON, DEVICES[:1])
    assert not adjustable(seen, DAEMON, DEVICES[::-1])
    assert not adjustable(seen, unlimited, DEVICES)
    assert not adjustable(
        dataclasses.replace(seen_unlimited, pinned_memory_limits_bytes=(None, GIB)), unlimited, DEVICES
    )
    assert not adjustable(dataclasses.replace(seen, running=False), DAEMON, DEVICES)
    assert not adjustable(dataclasses.replace(seen, problem="it does not answer"), DAEMON, DEVICES)


# --- observation ---


def test_host_without_daemons_is_not_queried(mps, host):
    host.broken["systemctl"] = "Failed to connect to bus"
    assert mps.observe() == ()


def test_servers_and_clients_are_listed(host, mps):
    mps.start(DAEMON, DEVICES)
    host.servers = {41: {"percentage": 25.0, "limits": {}, "clients": [77, 78]}, 42: {"clients": []}}
    (host.root / "proc/77").mkdir(parents=True)
    (host.root / "proc/77/cmdline").write_bytes(b"python3\0train.py\0")
    (host.root / "proc/77/status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
    (seen,) = mps.observe()
    assert seen.server_pids == (41, 42)
    first, second = seen.clients
    assert (first.pid, first.server_pid, first.command) == (77, 41, "python3 train.py")
    assert first.user
    # The client has ended after the server listed it.
    assert second == MpsClient(78, 41, attested=False)


def test_client_is_confirmed_by_the_kernel_not_its_server(host, mps):
    """Any process that answers at a daemon's pipes could name any pid as a client."""
    mps.start(DAEMON, DEVICES)
    host.servers = {41: {"percentage": 25.0, "limits": {}, "clients": [77, 78, 79, 80]}}
    proc = host.root / "proc"
    # These device nodes stand in for GPUs, because their numbers are the same on every machine: /dev/null is 1:3,
    # /dev/zero is 1:5, and /dev/tty is 5:0.
    opened = {41: ("/dev/null",), 77: ("/dev/null",), 78: ("/dev/null",), 79: (), 80: ("/dev/zero",)}
    for pid, uid in ((41, 1000), (77, 1000), (78, 70), (79, 1000), (80, 1000)):
        (proc / str(pid) / "fd").mkdir(parents=True)
        (proc / str(pid) / "status").write_text("PPid:\t9\nUid:\t%d\t%d\t%d\t%d\n" % ((uid,) * 4))
        (proc / str(pid) / "exe").symlink_to("/usr/bin/nvidia-cuda-mps-server")
        for number, file in enumerate(opened[pid]):
            (proc / str(pid) / "fd" / str(number)).symlink_to(file)

    def attested():
        (seen,) = mps.observe()
        assert seen.server_pids == (41,)
        clients = [client.pid for client in seen.clients if client.attested]
        # All processes that are not the daemon's own count as holders of the GPU.
        own = mps_plan.serves([seen])["GPU-a"]
        assert own == {9, *clients, *({41} - set(seen.unattested_server_pids))}
        assert not clients or 41 in own
        return clients

    def server(text):
        (proc / "41/status").write_text(text)

    # Simulated GPUs have no device nodes, so the check compares only the user ID.
    assert attested() == [77, 79, 80]
    (proc / "devices").write_text("Character devices:\n  1 nvidia-frontend\n  5 nvidia-caps\n")
    assert attested() == [77]
    # The server has ended. For example, its user killed it after the daemon listed it.
    (proc / "41/status").rename(proc / "41/gone")
    assert attested() == []
    # If an MPS server runs as root, it serves all users.
    server("PPid:\t9\nUid:\t0\t0\t0\t0\n")
    assert attested() == [77, 78]
    # Any process can have the name of the server, but only a child of the daemon has the daemon as its parent.
    server("PPid:\t1\nUid:\t0\t0\t0\t0\n")
    assert attested() == []
    # Root in a container can write to the pipes of its daemon, and so imitate a server.
    server("PPid:\t9\nUid:\t0\t0\t0\t0\nNSpid:\t41\t7\n")
    assert attested() == []
    server("PPid:\t9\nUid:\t0\t0\t0\t0\n")
    (proc / "41/exe").unlink()
    (proc / "41/exe").symlink_to("/usr/bin/nvidia-persistenced")
    assert attested() == []


@pytest.mark.parametrize("own", [True, False])
def test_a_client_in_mig_mode_has_the_instance_of_its_server_open(host, own):
    proc = host.root / "proc"
    (proc / "1").mkdir(parents=True)
    # /dev/full is device 1:7, and /dev/random is 1:8.
    (proc / "devices").write_text("Character devices:\n  1 nvidia-caps\n  5 nvidia\n")
    for pid, files in ((41, ("/dev/tty", "/dev/full")), (77, ("/dev/tty", "/dev/full" if own else "/dev/random"))):
        (proc / str(pid) / "fd").mkdir(parents=True)
        for number, file in enumerate(files):
            (proc / str(pid) / "fd" / str(number)).symlink_to(file)
    assert holders_mps.shares_gpu(41, 77, str(proc)) is own


def test_scan_of_a_forged_daemon_is_limited(host, mps, monkeypatch):
    mps.start(DAEMON, DEVICES)
    # With a simulated clock, a busy machine makes no difference.
    now, asked = [0.0], []
    monkeypatch.setattr(mps_control, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _seconds: None))
    host.servers = {pid: {"percentage": 25.0, "limits": {}, "clients": ()} for pid in range(1000, 1500)}
    assert "it names 500 servers" in mps.observe()[0].problem
    host.servers = {pid: {"percentage": 25.0, "limits": {}, "clients": ()} for pid in range(10_000, 210_000)}
    assert "characters" in mps.observe()[0].problem
    host.servers = {
        pid: {"percentage": 25.0, "limits": {}, "clients": range(1000 * pid, 1000 * pid + 60)}
        for pid in range(100, 160)
    }
    assert "clients or more" in mps.observe()[0].problem
    # The host has a few servers, each of which answers after 9 seconds.
    host.servers = {pid: {"percentage": 25.0, "limits": {}, "clients": ()} for pid in range(100, 160)}

    def slow(command, **options):
        now[0] += 9 if command == ["nvidia-cuda-mps-control"] else 0
        asked.append(options.get("timeout_seconds", 10))
        return host(command, **options)

    seen = MpsHost(str(host.root), slow).observe()[0]
    assert "takes too long to answer" in seen.problem and now[0] <= 63
    assert all(seconds <= 10 for seconds in asked)
    # A change of limits must keep the same time limit as an observation.
    now[0] = 0.0
    with pytest.raises(ApplyError, match="takes too long"):
        MpsHost(str(host.root), slow).adjust(DAEMON, DEVICES)
    assert now[0] <= 72


def test_a_client_with_a_long_command_can_be_ended(host, mps, tmp_path):
    """Compare the whole command line of a process before the test ends the process."""
    mps.start(DAEMON, DEVICES)
    (host.root / "proc").symlink_to("/proc")
    host.units[UNIT]["MainPID"] = str(os.getpid())
    # Until exec, the command line is empty. After exec, the process prints a line.
    client = subprocess.Popen(
        ["sh", "-c", "echo; read _", *(["0"] * 100)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdout.readline()
    try:
        with opened(program=named(tmp_path, "nvidia-cuda-mps-server")) as server:
            host.servers = {server.pid: {"percentage": 25.0, "limits": {}, "clients": [client.pid]}}
            (seen,) = mps.observe()
        disturbance = Disturbance("mps inference", mps_plan.clients(seen))
        (ended,) = end_holders([disturbance], grace_seconds=60)
        assert ended.startswith("pid %d (sh -c echo; read _ 0" % client.pid) and len(ended) < 150
        assert client.wait() == -signal.SIGTERM
    finally:
        client.kill()
        client.communicate()


def test_each_stopped_daemon_has_a_reason(host, mps):
    mps.start(DAEMON, DEVICES)
    mps.start(OTHER, ("GPU-c",))
    host.units[UNIT] = {"ActiveState": "failed", "Result": "signal"}
    del host.daemons["other"]
    inference, other = mps.observe()
    assert not inference.running and "is failed, result signal" in inference.problem and UNIT in inference.problem
    assert other.running and "Cannot find MPS control daemon" in other.problem
    assert (other.daemon, other.devices) == (OTHER, ("GPU-c",))


def test_replaced_program_is_a_problem(host, mps):
    mps.start(DAEMON, DEVICES)
    (host.root / "proc/9").mkdir(parents=True)
    (host.root / "proc/9/exe").symlink_to("/usr/bin/nvidia-cuda-mps-control")
    assert mps.observe()[0].problem is None
    (host.root / "proc/9/exe").unlink()
    (host.root / "proc/9/exe").symlink_to("/usr/bin/nvidia-cuda-mps-control (deleted)")
    assert "replaced" in mps.observe()[0].problem


def test_files_of_other_releases_are_named(host, mps):
    mps.start(DAEMON, DEVICES)
    mps.start(OTHER, ("GPU-c",))
    (host.root / "etc/cdi/openfleet-mps-inference.json").unlink()
    (host.root / mps_unit.UNIT_PATH).write_text("[Service]\n")
    inference, other = mps.observe()
    assert inference.outdated == ("etc/cdi/openfleet-mps-inference.json", mps_unit.UNIT_PATH)
    assert other.outdated == (mps_unit.UNIT_PATH,)
    mps.adjust(DAEMON, DEVICES)
    assert [seen.outdated for seen in mps.observe()] == [(), ()]
    assert "daemon-reload" in host.called[-3:]


MOUNT = r"run-openfleet\x2dmps-inference.mount"
PIPES = "run/openfleet-mps/inference"


def mounting(host):
    return [command for command in host.called if command.endswith(MOUNT)]


def test_pipe_directory_of_a_running_daemon_is_limited_after_the_next_boot(host, mps):
    """An earlier release created the directory without a size limit.

    A mount would hide the sockets of the running daemon.
    """
    mps.start(DAEMON, DEVICES)
    (host.root / PIPES).mkdir(parents=True)
    (host.root / PIPES / "control").touch()
    (host.root / mps_files.limited_folder("inference").unit_path).unlink()
    host.called.clear()
    (seen,) = mps.observe()
    assert seen.outdated == (mps_files.limited_folder("inference").unit_path,)
    assert seen.pipe_directory_limited is False
    mps.adjust(DAEMON, DEVICES)
    assert mounting(host) == ["enable --no-reload " + MOUNT]
    assert (host.root / PIPES / "control").exists()


def test_restarted_daemon_gets_a_new_pipe_directory(host, mps):
    """A container that mounted the old directory can still write to it.

    systemd does not mount over a folder with files.
    """
    mps.start(DAEMON, DEVICES)
    (host.root / PIPES).mkdir(parents=True)
    (host.root / PIPES / "control").touch()
    host.called.clear()
    there = []
    host.on_enable = lambda: there.extend((host.root / PIPES).parent.iterdir())
    mps.start(DAEMON, DEVICES)
    assert there == []
    assert host.called[0] == "stop -- " + UNIT
    assert mounting(host) == ["enable --no-reload --now " + MOUNT]


def test_pipe_directory_is_remounted_with_its_new_size(host, mps, monkeypatch):
    mps.start(DAEMON, DEVICES)
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    host.called.clear()
    mps.start(DAEMON, DEVICES)
    mps.adjust(DAEMON, DEVICES)
    assert mounting(host) == [] and "stop -- " + UNIT not in host.called
    assert mps.observe()[0].pipe_directory_limited is True
    (host.root / mps_files.limited_folder("inference").unit_path).write_text("[Mount]\n")
    mps.adjust(DAEMON, DEVICES)
    assert mounting(host) == ["reload " + MOUNT]
    host.called.clear()
    mps.stop("inference")
    mps.forget("inference")
    assert mounting(host) == ["disable --no-reload --now " + MOUNT]
    assert not (host.root / mps_files.limited_folder("inference").unit_path).exists()


def test_unmountable_pipe_directory_is_an_error(host, mps):
    host.broken["systemctl enable"] = "Job failed"
    with pytest.raises(ApplyError, match=r"its pipe directory cannot be mounted or unmounted: .*Job failed"):
        mps.start(DAEMON, DEVICES)
    assert host.daemons == {}


def test_unit_that_systemd_has_not_reloaded_is_outdated(host, mps):
    mps.start(DAEMON, DEVICES)
    host.units[UNIT]["NeedDaemonReload"] = "yes"
    assert mps.observe()[0].outdated == (mps_unit.UNIT_PATH,)


def test_unit_sets_a_label_under_selinux(host, mps):
    (host.root / "sys/fs/selinux").mkdir(parents=True)
    (host.root / "sys/fs/selinux/enforce").write_text("1")
    mps.start(DAEMON, DEVICES)
    assert "container_file_t" in (host.root / mps_unit.UNIT_PATH).read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": 99}'])
def test_damaged_file_is_an_error_with_its_name(host, mps, text):
    mps.start(DAEMON, DEVICES)
    (host.root / "etc/openfleet-gpu/mps/inference.json").write_text(text)
    with pytest.raises(ApplyError, match=r"inference\.json") as error:
        mps.observe()
    assert error.value.outcome == "old"


def test_a_file_of_another_name_is_an_error(host, mps):
    mps.start(DAEMON, DEVICES)
    folder = host.root / "etc/openfleet-gpu/mps"
    (folder / "copy.json").write_text((folder / "inference.json").read_text())
    with pytest.raises(ApplyError, match=r"copy\.json.*inference"):
        mps.observe()


# --- failures ---


def test_missing_program_names_its_package(host, mps):
    assert mps.available() is None
    (host.root / "run/systemd/system").rmdir()
    assert "systemd" in str(mps.available())
    (host.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    assert "nvidia-compute-utils" in str(mps.available())
    before = existing(host.root)
    with pytest.raises(ApplyError, match="not installed"):
        mps.start(DAEMON, DEVICES)
    assert existing(host.root) == before and host.called == []


def test_impossible_name_is_refused_before_any_change(host, mps):
    before = existing(host.root)
    with pytest.raises(ApplyError, match="room for only 69"):
        mps.start(dataclasses.replace(DAEMON, name="x" * 70), DEVICES)
    assert existing(host.root) == before


def test_failed_unit_is_reported_with_its_journal(host, mps):
    host.broken["systemctl restart"] = "Job for %s failed.\n" % UNIT
    with pytest.raises(ApplyError, match=r"does not start.*Job for.*cannot allocate") as error:
        mps.start(DAEMON, DEVICES)
    assert error.value.where == 'the MPS daemon "inference"'
    assert "NEW UI" not in error.value.problem and "journalctl --unit " + UNIT in error.value.cure
    assert error.value.outcome == "unknown"


def test_daemon_that_ignores_its_limits_is_an_error(host, mps, monkeypatch):
    monkeypatch.setattr(
        Host, "start", lambda self, unit: self.daemons.update(inference={"percentage": 100.0, "limits": {}})
    )
    with pytest.raises(ApplyError, match="did not accept its limits: it reports 100"):
        mps.start(DAEMON, DEVICES)


def test_daemon_that_ends_while_adjusted_is_an_error(host, mps):
    mps.start(DAEMON, DEVICES)
    host.daemons.clear()
    with pytest.raises(ApplyError, match=r"limits cannot be changed.*Cannot find"):
        mps.adjust(DAEMON, DEVICES)


def test_unresponsive_systemd_is_an_error(host, mps):
    mps.start(DAEMON, DEVICES)
    host.broken["systemctl"] = "Failed to connect to bus"
    for act in (mps.observe, lambda: mps.start(DAEMON, DEVICES), lambda: mps.stop("inference")):
        with pytest.raises(ApplyError, match="Failed to connect to bus") as error:
            act()
        # An action that only observes the host has certainly changed nothing.
        assert (error.value.outcome == "old") == (act == mps.observe)


# --- stop and remove ---


def test_stopped_daemon_keeps_its_files_and_removed_one_does_not(host, mps):
    (host.root / "etc/cdi").mkdir(parents=True)
    (host.root / "etc/systemd/system").mkdir(parents=True)
    (host.root / "etc/logrotate.d").mkdir(parents=True)
    before = existing(host.root) | {"run", "var", "var/log"}
    mps.start(DAEMON, DEVICES)
    mps.start(OTHER, ("GPU-c",))
    for name in ("inference", "other"):
        for directory in ("run/openfleet-mps", "var/log/openfleet-mps"):
            (host.root / directory / name / "deep").mkdir(parents=True)
    files = existing(host.root)
    mps.stop("inference")
    assert existing(host.root) == files and host.called[-1] == "stop -- " + UNIT
    mps.forget("inference")
    assert (host.root / mps_unit.UNIT_PATH).exists()
    assert [seen.daemon for seen in mps.observe()] == [OTHER]
    mps.stop("other")
    mps.forget("other")
    assert existing(host.root) == before
    assert host.called[-1] == "daemon-reload"


def test_files_of_others_stay(host, mps):
    mps.start(DAEMON, DEVICES)
    kept = [host.root / "etc/openfleet-gpu/layout.json", host.root / "etc/openfleet-gpu/mps/notes.txt"]
    for path in kept:
        path.write_text("")
    mps.stop("inference")
    mps.forget("inference")
    assert all(path.exists() for path in kept)
    assert mps.observe() == ()


@pytest.mark.parametrize(
    "state",
    [
        {"ActiveState": "activating"},
        {"ActiveState": "inactive", "Job": "211"},
        {"ActiveState": "failed"},
        {"ActiveState": "active", "LoadState": "not-found"},
        {"ActiveState": "activating", "LoadState": "not-found"},
    ],
)
def test_starting_daemon_is_stopped(host, mps, state):
    mps.start(DAEMON, DEVICES)
    host.units[UNIT] = state
    mps.stop("inference")
    assert host.called[-1] == "stop -- " + UNIT


def test_missing_unit_needs_no_stop(host, mps):
    host.units["openfleet-mps@gone.service"] = {"LoadState": "not-found"}
    mps.stop("gone")
    mps.forget("gone")
    assert not [word for word in host.called if word.startswith("stop")]


def test_spec_is_removed_last(host, mps, monkeypatch):
    """If the run is interrupted before the CDI specification is removed, the next run removes it."""
    mps.start(DAEMON, DEVICES)
    removed = []
    monkeypatch.setattr(mps_host.durable, "remove", lambda path: removed.append(str(path.relative_to(host.root))))
    mps.forget("inference")
    assert removed[-1] == "etc/openfleet-gpu/mps/inference.json"
    assert set(removed) == set(mps_files.files(DAEMON, DEVICES))


def test_spec_is_readable_json(host, mps):
    mps.start(DAEMON, DEVICES)
    data = json.loads((host.root / mps_files.spec_path("inference")).read_text())
    assert (data["name"], data["devices"], data["active_thread_percentage"]) == ("inference", list(DEVICES), 25)


def test_client_with_slow_files_is_not_confirmed(tmp_path, monkeypatch):
    """Answers at a daemon's pipes can name any process.

    This process may have a million open files, or files on a server that does not respond.
    """
    proc = tmp_path / "proc"
    for pid in (41, 77):
        (proc / str(pid) / "fd").mkdir(parents=True)
        (proc / str(pid) / "fd" / "3").symlink_to("/dev/null")
    (proc / "devices").write_text("Character devices:\n195 nvidia\n")

    def late(number, frame):
        raise AssertionError("the scan waits for the file")

    monkeypatch.setattr(holders_mps, "device_of", lambda path: signal.pause())
    monkeypatch.setattr(file_worker, "_SECONDS", 0.1)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        assert not holders_mps.shares_gpu(41, 77, str(proc))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
