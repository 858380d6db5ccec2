# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the containers that would lose their GPUs if a plan reloads systemd."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import systemd_reload
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.model import CONTAINER, PROCESS
from ansible_collections.openfleet.gpu.plugins.module_utils.install import sources
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.types import Layout
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Step
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Plan
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.services import PartRequest
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques import detached
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import files as mps_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import service as mps_service
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import unit as mps_unit
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.host import MpsHost
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.plan import WantedDaemon
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.steps import (
    AdjustMps,
    MpsPlan,
    StartMps,
    StopMps,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuSeen, VgpuTenant
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.steps import (
    AddTenant,
    ChangeTenant,
    RemoveTenant,
    VgpuPlan,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files as toolkit_files
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import toolkit
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Plan as ToolkitPlan
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.toolkit import Toolkit
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu
from tests.unit.module_utils.holders.holder_hosts import host as host_of
from tests.unit.module_utils.techniques.mps.mps_hosts import DAEMON, DEVICES, OTHER, make_host

ID = "0123456789abcdef" * 4
POD = "kubepods-besteffort-pod11111111_2222_3333_4444_555555555555.slice"
IN_SCOPES = [
    f"0::/system.slice/docker-{ID}.scope",
    f"0::/kubepods.slice/kubepods-besteffort.slice/{POD}/cri-containerd-{ID}.scope",
    f"0::/kubepods.slice/kubepods-besteffort.slice/{POD}/crio-{ID}.scope",
    f"0::/machine.slice/libpod-{ID}.scope/container",
    f"12:devices:/system.slice/docker-{ID}.scope\n1:name=systemd:/system.slice/docker-{ID}.scope",
]
SCOPES = ["%s-%s.scope" % (engine, ID) for engine in ("docker", "cri-containerd", "crio", "libpod")]
ELSEWHERE = [
    f"0::/docker/{ID}",
    f"0::/kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/{ID}",
    "0::/system.slice/trainer.service",
    "0::/user.slice/user-1000.slice/session-3.scope",
    "",
]
NUMBERS = {"nvidia0": (195, 0), "nvidiactl": (195, 255), "nvidia-uvm": (511, 0), "nvidia-caps/nvidia-cap1": (237, 1)}


def holder(pid: int, who: str, kind: str = CONTAINER) -> Holder:
    return Holder("GPU-0", None, kind, who, pid)


class Node:
    """A host whose /dev and /proc are below a folder.

    Device nodes are empty files, whose device numbers the class provides.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = Proc(root / "proc")
        (root / "dev/nvidia-caps").mkdir(parents=True)
        (root / "dev/char").mkdir()
        for name in (*NUMBERS, "null", "nvidia-smi.log"):
            (root / "dev" / name).touch()

    def number(self, path: str):
        return NUMBERS.get(str(Path(path).relative_to(self.root / "dev")))

    def link(self, *names: str) -> None:
        for name in names:
            (self.root / "dev/char" / ("%d:%d" % NUMBERS[name])).symlink_to("../" + name)

    def container(self, pid: int, cgroup: str = IN_SCOPES[0]) -> Holder:
        self.proc.process(pid, "python3", cgroup=cgroup)
        return holder(pid, "docker container %d" % pid)


@pytest.fixture
def node(tmp_path, monkeypatch):
    node = Node(tmp_path)
    monkeypatch.setattr(systemd_reload.missing_links, "__defaults__", (node.number,))
    return node


@pytest.mark.parametrize("cgroup", IN_SCOPES)
def test_scope_of_a_container_is_recognized_by_its_cgroup(cgroup):
    assert systemd_reload.scope_of(cgroup + "\n") in SCOPES


@pytest.mark.parametrize("cgroup", ELSEWHERE)
def test_other_cgroups_are_not_affected(cgroup):
    assert systemd_reload.scope_of(cgroup) == ""


def test_links_are_missing_one_by_one(node):
    assert systemd_reload.missing_links(node.root) == ("195:0", "195:255", "237:1", "511:0")
    node.link("nvidia0", "nvidiactl", "nvidia-uvm")
    assert systemd_reload.missing_links(node.root) == ("237:1",)
    node.link("nvidia-caps/nvidia-cap1")
    assert systemd_reload.missing_links(node.root) == ()


def test_broken_link_is_missing(node):
    node.link(*NUMBERS)
    (node.root / "dev/nvidia0").rename(node.root / "dev/nvidia7")
    assert systemd_reload.missing_links(node.root, lambda path: (195, 0) if "nvidia7" in path else None) == ("195:0",)


def test_a_host_without_device_nodes_lacks_no_links(tmp_path):
    assert systemd_reload.missing_links(tmp_path) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_the_number_of_a_node_is_read_from_the_kernel(tmp_path):
    try:
        os.mknod(tmp_path / "nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
    except PermissionError:
        pytest.skip("mknod is not allowed here")
    assert systemd_reload.device_number(str(tmp_path / "nvidia0")) == (195, 0)
    (tmp_path / "file").touch()
    assert systemd_reload.device_number(str(tmp_path / "file")) is None
    assert systemd_reload.device_number(str(tmp_path / "none")) is None


def test_containers_are_disturbed_once_with_a_fix(node):
    holders = [node.container(71), node.container(72, ELSEWHERE[0]), node.container(73, ELSEWHERE[2])]
    holders += [holders[0], holder(74, "an ended container"), Holder("GPU-0", None, PROCESS, "a Slurm job")]
    (found,) = detached.look(node.root, holders)
    assert [str(who) for who in found.who] == ["docker container 71"]
    for part in ("195:0, 195:255, 237:1, 1 more", "nvidia-ctk system create-dev-char-symlinks --create-all", "restart"):
        assert part in str(found)


def test_with_all_links_nothing_is_disturbed(node):
    node.link(*NUMBERS)
    assert detached.look(node.root, [node.container(71)]) == []


class Systemctl:
    """Answer `systemctl show` for a container's scope. Other commands print nothing."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.called = lines, []

    def __call__(self, command, **_options):
        self.called.append(command)
        text = "\n".join(["Id=" + SCOPES[0], "LoadState=loaded", *self.lines, ""]) if "show" in command else ""
        return subprocess.CompletedProcess(command, 0, text, "")


@pytest.mark.parametrize(
    ("lines", "with_links", "without_links"),
    [
        (["DevicePolicy=strict", "DeviceAllow=/dev/char/1:3 rwm", "DeviceAllow=/dev/char/195:0 rwm"], False, True),
        (["DevicePolicy=strict", "DeviceAllow=/dev/nvidia0 rwm"], False, True),
        # In these cases, a hook of nvidia-container-cli added the nodes, or the links were created after the
        # container's start.
        (["DevicePolicy=strict", "DeviceAllow=/dev/char/1:3 rwm", "DeviceAllow=char-pts rwm"], True, True),
        (["DevicePolicy=strict"], True, True),
        # These containers are privileged.
        (["DevicePolicy=auto"], False, False),
        (["DevicePolicy=auto", "DeviceAllow="], False, False),
    ],
)
def test_the_devices_of_a_scope_decide(node, lines, with_links, without_links):
    run, holders = Systemctl(*lines), [node.container(71)]
    assert bool(detached.look(node.root, holders, run)) is without_links
    node.link(*NUMBERS)
    assert bool(detached.look(node.root, holders, run)) is with_links


def test_a_systemd_that_does_not_answer_leaves_the_links_to_decide(node):
    def refuses(command, **_options):
        return subprocess.CompletedProcess(command, 1, "", "Connection timed out")

    holders = [node.container(71)]
    assert detached.look(node.root, holders, refuses)
    node.link(*NUMBERS)
    assert not detached.look(node.root, holders, refuses)


# --- installers ---------------------------------------------------------------------------------------------------------

UNIT = "etc/systemd/system/one.service"


@pytest.fixture
def busy_node(node):
    """Return a host with a container that would lose its open GPU in a reload."""
    node.proc.process(71, "python3", Path("/dev/nvidia0"), cgroup=IN_SCOPES[0])
    node.proc.process(72, "nginx", Path("/dev/null"), cgroup=IN_SCOPES[1])
    node.proc.process(73, "python3", Path("/dev/nvidia0"), cgroup=ELSEWHERE[2])
    return node


def install(node, body, check=False, **params):
    given = {"root": str(node.root), "sources_digest": "", "sources": None, "on_busy": "fail", "busy_timeout": 0}
    return sources.bring_about({**given, **params}, check, lambda _params, target, _sources: body(target))


def write_unit(target):
    target.write("etc/one.conf", b"1")
    target.write(UNIT, b"[Unit]")
    target.reload(run=False)


def test_containers_at_risk_have_a_gpu_open(busy_node):
    (container,) = systemd_reload.containers_at_risk(busy_node.root)
    assert container.startswith("docker-0123") and "pid 71" in container
    busy_node.link(*NUMBERS)
    assert systemd_reload.containers_at_risk(busy_node.root) == []


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("policy", ["fail", "drain"])
def test_an_installer_refuses_before_its_first_change(busy_node, check, policy):
    with pytest.raises(ApplyError) as error:
        install(busy_node, write_unit, check, on_busy=policy)
    text = str(error.value)
    assert error.value.outcome == "old" and "Nothing was changed." in text
    assert "pid 71" in text and "create-dev-char-symlinks" in text and "gpu_layout_on_busy" in text
    assert not (busy_node.root / "etc").exists()


def test_an_installer_that_changes_no_unit_is_not_refused(busy_node):
    assert install(busy_node, lambda target: target.write("etc/one.conf", b"1") and None)["changed"]
    busy_node.link(*NUMBERS)
    install(busy_node, write_unit)
    for name in NUMBERS:
        (busy_node.root / "dev/char" / ("%d:%d" % NUMBERS[name])).unlink()
    assert not install(busy_node, write_unit)["changed"], "the unit is there already"


@pytest.mark.parametrize(("policy", "check"), [("force", False), ("force", True), ("wait", True)])
def test_an_installer_continues_where_it_may(busy_node, policy, check):
    assert install(busy_node, write_unit, check, on_busy=policy)["changed"]
    assert (busy_node.root / UNIT).exists() is not check


def test_an_installer_waits_for_the_containers_and_not_forever(busy_node, monkeypatch):
    with pytest.raises(ApplyError, match="pid 71"):
        install(busy_node, write_unit, on_busy="wait", busy_timeout=0)
    waits, sleep = [], time.sleep

    def end(seconds):
        # The standard library also sleeps, for some milliseconds, while it waits for a child process.
        if seconds < 1:
            return sleep(seconds)
        waits.append(seconds)
        return shutil.rmtree(busy_node.root / "proc/71")

    monkeypatch.setattr(systemd_reload.time, "sleep", end)
    assert install(busy_node, write_unit, on_busy="wait", busy_timeout=60)["changed"]
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("step", "refused"),
    [
        (Step("install", "install it", ("1.19.1",)), True),
        (Step("remove", "remove it", ("nvidia-container-toolkit",)), True),
        (Step("write", "write a unit", (toolkit_files.UNITS[0], "[Unit]")), True),
        (Step("delete", "delete a unit", (toolkit_files.UNITS[1],)), True),
        (Step("write", "write a source", ("/etc/apt/sources.list.d/one.list", "deb")), False),
        (Step("restart", "restart docker", ("docker",)), False),
    ],
)
def test_the_toolkit_refuses_a_plan_that_reloads_systemd(busy_node, monkeypatch, step, refused):
    work = Toolkit.__new__(Toolkit)
    work.params, work.call = {"on_busy": "fail", "busy_timeout": 0}, Systemctl("DevicePolicy=strict")
    monkeypatch.setattr(toolkit, "Path", lambda _root: busy_node.root)
    plan = ToolkitPlan(steps=(step,))
    for check in (True, False):
        if refused:
            with pytest.raises(ApplyError, match="pid 71"):
                work.guard(plan, check)
        else:
            work.guard(plan, check)


# --- the plan of MPS daemons ------------------------------------------------------------------------------------------


def seen(daemon=DAEMON) -> MpsSeen:
    return MpsSeen(daemon, DEVICES, True, 9, (), (), 25.0, ())


def new_limits() -> MpsPlan:
    return MpsPlan(adjusts=(AdjustMps(seen(), dataclasses.replace(DAEMON, active_thread_percentage=50)),))


@pytest.fixture
def mps(node):
    systemd = make_host(node.root)
    return MpsHost(str(systemd.root), systemd)


def test_the_first_daemon_reloads_systemd_and_new_limits_do_not(mps):
    start = MpsPlan(starts=(StartMps(DAEMON, "gpu_layout[0].mps"),))
    assert mps.reloads(start)
    mps.start(DAEMON, DEVICES)
    assert not mps.reloads(start)
    assert not mps.reloads(new_limits())
    assert mps.reloads(MpsPlan(starts=(StartMps(OTHER, "gpu_layout[1].mps"),))), "its mount unit is new"


@pytest.mark.parametrize("path", [mps_unit.UNIT_PATH, mps_files.limited_folder(DAEMON.name).unit_path])
def test_a_unit_of_another_release_reloads_systemd(node, mps, path):
    mps.start(DAEMON, DEVICES)
    (node.root / path).write_text("[Unit]\n")
    assert mps.reloads(new_limits())


def test_unit_that_systemd_has_not_reloaded_reloads_it(mps):
    mps.start(DAEMON, DEVICES)
    mps._run.units["openfleet-mps@inference.service"]["NeedDaemonReload"] = "yes"
    assert mps.reloads(new_limits())


def test_only_the_last_removed_daemon_reloads_systemd(mps):
    mps.start(DAEMON, DEVICES)
    mps.start(OTHER, ("GPU-c",))
    first, both = (StopMps(seen(), forget=True),), (StopMps(seen(), forget=True), StopMps(seen(OTHER), forget=True))
    assert not mps.reloads(MpsPlan(stops=first))
    assert mps.reloads(MpsPlan(stops=both))
    assert not mps.reloads(MpsPlan(stops=(StopMps(seen(), forget=False),)))


@pytest.mark.parametrize("daemon", [DAEMON, OTHER], ids=["first", "second"])
def test_predicted_reloads_match_a_change(mps, daemon):
    """Compare the reloads that a plan predicts with those of the start itself."""
    if daemon is OTHER:
        mps.start(DAEMON, DEVICES)
    for expected in (True, False):
        mps._run.called.clear()
        assert mps.reloads(MpsPlan(starts=(StartMps(daemon, ""),))) is expected
        mps.start(daemon, ("GPU-c",))
        assert ("daemon-reload" in mps._run.called) is expected


def test_a_plan_with_a_reload_is_refused_while_containers_would_lose_their_gpus(node, mps, monkeypatch):
    monkeypatch.setattr(mps_service, "wanted", lambda *_arguments: (WantedDaemon(DAEMON, "gpu_layout[0].mps"),))
    monkeypatch.setattr(mps, "available", lambda: None)
    service = mps_service.MpsService(private=True)
    service._host = mps
    mps._run.units[SCOPES[0]] = {"DevicePolicy": "strict", "DeviceAllow": "/dev/char/195:0 rwm"}
    held = dataclasses.replace(gpu(0), held_by=(node.container(71),))
    request = PartRequest(Layout(()), Plan(()), host_of(held), ("mps",))
    (disturbance,) = service.plan(request).disturbs
    assert "docker container 71" in str(disturbance) and "create-dev-char-symlinks" in str(disturbance)
    node.link(*NUMBERS)
    assert service.plan(request).disturbs == ()


# --- the plan of tenants ----------------------------------------------------------------------------------------------


def test_tenants_reload_systemd_as_their_plan_says(node):
    (node.root / "run/systemd/system").mkdir(parents=True)
    gpu_a = dataclasses.replace(assumed_gpus(["H100-80GB"])[0], held_by=(node.container(71),))
    run = Systemctl("DevicePolicy=strict", "DeviceAllow=/dev/char/195:0 rwm")
    tenants = VgpuHost([gpu_a], str(node.root), run, str(node.root / "proc"))
    tenant = VgpuTenant("a", 2**30, 30, (VgpuSeat(gpu_a.uuid, 0),))
    smaller = dataclasses.replace(tenant, sm_percent=10)
    for part, apply, expected in (
        (VgpuPlan(adds=(AddTenant(tenant, "gpu_layout[0]"),)), lambda: tenants.write(tenant), True),
        (VgpuPlan(changes=(ChangeTenant(VgpuSeen(tenant), smaller),)), lambda: tenants.write(smaller), False),
        (VgpuPlan(removes=(RemoveTenant(VgpuSeen(smaller)),)), lambda: tenants.forget("a"), True),
    ):
        disturbs = tenants.reload_disturbs(part, gpu_a.held_by)
        assert bool(disturbs) is expected
        run.called.clear()
        apply()
        assert (systemd_reload.RELOAD in run.called) is expected
