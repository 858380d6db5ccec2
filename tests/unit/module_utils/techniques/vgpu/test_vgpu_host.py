# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write, observe and remove the tenants of a host whose files are in a folder."""

from __future__ import annotations

import dataclasses
import grp
import json
import os
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import host as vgpu_host
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import (
    VgpuName,
    VgpuSeat,
    VgpuSeen,
    VgpuTenant,
    VgpuUsage,
)

GIB = 2**30
GPU, OTHER = (
    dataclasses.replace(gpu, pci_address="0000:1%d:00.0" % gpu.index) for gpu in assumed_gpus(["H100-80GB"] * 2)
)
A = VgpuTenant("a", 8 * GIB, 30, (VgpuSeat(GPU.uuid, 0),))
B = VgpuTenant("b", 8 * GIB, 30, (VgpuSeat(GPU.uuid, 1), VgpuSeat(OTHER.uuid, 0)))
UNUSED = VgpuUsage()


class Tools:
    """Record systemctl and all other commands instead of running them."""

    def __init__(self):
        self.called = []

    def __call__(self, command, **options):
        self.called.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture(name="host")
def make_host(tmp_path):
    return VgpuHost([GPU, OTHER], str(tmp_path), Tools(), str(tmp_path / "proc"))


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_written_tenants_are_observed(host, tmp_path):
    os.umask(0o077)
    try:
        host.write(A)
        host.write(B)
    finally:
        os.umask(0o022)
    assert host.observe() == (
        VgpuSeen(A, usage=UNUSED, isolation="none"),
        VgpuSeen(B, usage=UNUSED, isolation="none"),
    )
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    for path, mode in modes.items():
        shared = path.startswith("run/") and not (tmp_path / path).is_dir()
        # Only root can write the quota. The library ignores any other quota.
        assert mode == (0o666 if shared else 0o755 if (tmp_path / path).is_dir() else 0o644), path


@pytest.mark.parametrize(
    ("change", "isolation"),
    [
        ({}, ["none", "none"]),
        ({"seats": (VgpuSeat(OTHER.uuid, 0),)}, [None, None]),
        ({"provider": "mps"}, [None, None]),
        ({"sm_percent": 100}, ["none", None]),
    ],
    ids=["neighbours", "another-gpu", "mps", "never-held-back"],
)
def test_tenants_that_share_a_gpu_are_not_isolated(host, change, isolation):
    host.write(A)
    host.write(dataclasses.replace(B, **change))
    assert [seen.isolation for seen in host.observe()] == isolation


def test_containers_get_the_front_library_if_the_host_has_it_and_a_driver(host, tmp_path):
    def drivers():
        text = (tmp_path / vgpu_files.cdi_path("a")).read_text()
        mounts = json.loads(text)["devices"][0]["containerEdits"]["mounts"]
        return [m["hostPath"] for m in mounts if m["containerPath"] == "/" + vgpu_files.DRIVER_INSIDE]

    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.82.07")
    (folder / "libcuda.so.580.82.07").touch()
    host.write(A)
    assert (drivers(), host.observe()[0].outdated) == ([], ())
    front = tmp_path / vgpu_files.FRONT
    front.parent.mkdir(parents=True)
    front.touch()
    assert host.observe()[0].outdated == (vgpu_files.cdi_path("a"),)
    host.write(A)
    # An update changes the link, so the mount must use the link and not the file of this version.
    assert (drivers(), host.observe()[0].outdated) == (["/usr/lib/x86_64-linux-gnu/libcuda.so.1"], ())
    # The driver was removed. A container whose specification mounts the missing file would not start.
    (folder / "libcuda.so.580.82.07").unlink()
    assert host.observe()[0].outdated == (vgpu_files.cdi_path("a"),)
    host.write(A)
    assert drivers() == []


def test_region_belongs_to_its_group(host, tmp_path):
    own = grp.getgrgid(os.getgid()).gr_name
    region, turnstile = (tmp_path / path for path in (vgpu_files.region_path("a"), vgpu_files.turnstile_path(GPU.uuid)))
    host.write(A)
    host.write(dataclasses.replace(A, group=own))
    assert (region.stat().st_mode & 0o777, region.stat().st_gid) == (0o660, os.getgid())
    assert turnstile.stat().st_mode & 0o777 == 0o666
    assert host.observe() == (VgpuSeen(dataclasses.replace(A, group=own), usage=UNUSED),)
    region.chmod(0o666)
    assert host.observe()[0].outdated == (vgpu_files.region_path("a"),)
    host.write(A)
    assert region.stat().st_mode & 0o777 == 0o666


def test_unknown_group_is_refused_before_any_change(host, tmp_path):
    with pytest.raises(ApplyError, match=r"this host has no group no-such-group: .*|no group no-such-group") as raised:
        host.write(dataclasses.replace(A, group="no-such-group"))
    assert "groupadd --system no-such-group" in str(raised.value)
    assert everything(tmp_path) == []


def test_grown_shared_file_is_truncated(host, tmp_path):
    """A tenant that fills the tmpfs would prevent other tenants from starting.

    The used part of the file is kept.
    """
    host.write(A)
    region = tmp_path / vgpu_files.region_path("a")
    region.write_bytes(b"x" * (vgpu_files.REGION_BYTES + 1))
    assert host.observe()[0].outdated == (vgpu_files.region_path("a"),)
    inode = region.stat().st_ino
    host.write(A)
    assert region.read_bytes() == b"x" * vgpu_files.REGION_BYTES
    assert region.stat().st_ino == inode


def test_systemd_reloads_only_after_a_changed_drop_in(tmp_path):
    tools = Tools()
    host = VgpuHost([GPU, OTHER], str(tmp_path), tools, str(tmp_path / "proc"))

    def reloads():
        found = tools.called.count(["systemctl", "daemon-reload"])
        tools.called.clear()
        return found

    host.write(A)
    assert reloads() == 0, "a host without systemd"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    host.write(dataclasses.replace(A, sm_percent=10))
    assert reloads() == 0, "a quota is no part of it"
    (tmp_path / vgpu_files.drop_in_path("a")).write_text("# of another release\n")
    host.write(A)
    assert reloads() == 1
    host.write(B)
    assert reloads() == 1
    host.forget("b")
    assert reloads() == 1


def test_failed_reload_is_reported(tmp_path):
    def refuses(command, **_options):
        return subprocess.CompletedProcess(command, 1, "", "Access denied")

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    with pytest.raises(ApplyError, match=r"cannot read the drop-ins of tenants: .*Access denied"):
        VgpuHost([GPU], str(tmp_path), refuses, str(tmp_path / "proc")).write(A)


def test_files_are_replaced_atomically(host, tmp_path):
    host.write(A)
    before = (tmp_path / vgpu_files.quota_path("a")).stat().st_ino
    with (tmp_path / vgpu_files.quota_path("a")).open() as old:
        host.write(dataclasses.replace(A, memory_bytes=4 * GIB))
        assert "memory %d " % (8 * GIB) in old.read(), "who reads the old one reads all of it"
    assert (tmp_path / vgpu_files.quota_path("a")).stat().st_ino != before
    assert host.observe()[0].tenant.memory_bytes == 4 * GIB


def test_used_regions_are_not_changed(host, tmp_path):
    host.write(A)
    region = tmp_path / vgpu_files.region_path("a")
    region.write_bytes(b"in use")
    before = region.stat().st_ino
    host.write(dataclasses.replace(A, sm_percent=50))
    assert (region.read_bytes(), region.stat().st_ino) == (b"in use", before)


@pytest.mark.parametrize(
    "path",
    [
        vgpu_files.quota_path("a"),
        vgpu_files.cdi_path("a"),
        vgpu_files.region_path("a"),
        vgpu_files.turnstile_path(GPU.uuid),
        vgpu_files.TMPFILES_PATH,
    ],
)
def test_missing_files_are_detected_and_recreated(host, tmp_path, path):
    host.write(A)
    (tmp_path / path).unlink()
    assert host.observe() == (VgpuSeen(A, (path,), None if path == vgpu_files.region_path("a") else UNUSED),)
    host.write(A)
    assert host.observe() == (VgpuSeen(A, usage=UNUSED),)


def put_link(path, target):
    path.symlink_to(target)


def put_dangling_link(path, target):
    path.symlink_to(target.with_name("nothing"))


def put_pipe(path, _target):
    os.mkfifo(path)


def put_folder(path, _target):
    path.mkdir()


@pytest.mark.parametrize("put", [put_link, put_dangling_link, put_pipe, put_folder])
@pytest.mark.parametrize("shared", [vgpu_files.region_path("a"), vgpu_files.turnstile_path(GPU.uuid)])
def test_link_or_pipe_instead_of_a_shared_file_is_neither_followed_nor_awaited(host, tmp_path, put, shared):
    target = tmp_path / "of-root"
    target.write_text("secret")
    target.chmod(0o600)
    host.write(A)
    path = tmp_path / shared
    path.unlink()
    put(path, target)
    assert shared in host.observe()[0].outdated
    host.write(A)
    assert host.observe() == (VgpuSeen(A, usage=UNUSED),)
    assert path.is_file() and not path.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("secret", 0o600)
    assert not target.with_name("nothing").exists()


@pytest.mark.parametrize("put", [put_link, put_pipe, put_folder])
def test_foreign_files_next_to_turnstiles_are_removed(host, tmp_path, put):
    target = tmp_path / "of-root"
    target.write_text("secret")
    host.write(A)
    put(tmp_path / vgpu_files.GPUS / "other", target)
    host.forget("a")
    assert everything(tmp_path) == ["of-root"]


def test_the_last_tenant_leaves_nothing(host, tmp_path):
    host.write(A)
    host.write(B)
    host.forget("b")
    assert host.observe() == (VgpuSeen(A, usage=UNUSED),)
    assert not [path for path in everything(tmp_path) if OTHER.uuid in path or "/b" in path]
    host.forget("a")
    assert everything(tmp_path) == []
    assert not (tmp_path / "run/openfleet-gpu").exists()
    assert not (tmp_path / "etc/openfleet-gpu").exists()
    host.forget("a")


@pytest.mark.parametrize("others", [(), (B,)], ids=["last", "other"])
def test_folders_of_a_removed_tenant_that_a_boot_created_again_are_removed(host, tmp_path, others):
    """Remove folders of a tenant whose removal was interrupted before a boot.

    The CDI specification was already removed. At boot, systemd-tmpfiles created the folders in /run again.
    """
    for each in (A, *others):
        host.write(each)
    (tmp_path / vgpu_files.spec_path("a")).unlink()
    for path in (tmp_path / vgpu_files.folder("a")).iterdir():
        path.unlink()
    host.update_shared()
    assert not [path for path in tmp_path.rglob("a") if path.is_dir()]
    assert [each.tenant.name for each in host.observe()] == [each.name for each in others]


def test_files_of_others_stay(host, tmp_path):
    (tmp_path / "etc/openfleet-gpu").mkdir(parents=True)
    (tmp_path / "etc/openfleet-gpu/layout.json").touch()
    host.write(A)
    host.forget("a")
    assert everything(tmp_path) == ["etc/openfleet-gpu/layout.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', '{"schema": 2}'])
def test_invalid_file_is_named(host, tmp_path, text):
    host.write(A)
    (tmp_path / vgpu_files.spec_path("a")).write_text(text)
    with pytest.raises(ApplyError, match=r"a/tenant\.json") as error:
        host.observe()
    assert error.value.outcome == "old"


def test_renamed_folder_is_named(host, tmp_path):
    host.write(A)
    (tmp_path / vgpu_files.folder("a")).rename(tmp_path / vgpu_files.folder("c"))
    with pytest.raises(ApplyError, match='contains the tenant "a"'):
        host.observe()


def test_missing_library_names_the_role(host, tmp_path):
    assert "openfleet.gpu.vgpu_limiter" in str(host.available())
    (tmp_path / vgpu_files.LIBRARY).parent.mkdir(parents=True)
    (tmp_path / vgpu_files.LIBRARY).touch()
    assert host.available() is None


def test_processes_of_a_tenant_are_found_by_environment(host, tmp_path):
    for pid, words in ((7, b"PATH=/bin\0OPENFLEET_VGPU=a\0"), (8, b"OPENFLEET_VGPU=ab\0"), (9, b"")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "environ").write_bytes(words)
    holders = [Holder(GPU.uuid, None, "process", "pid %d" % pid, pid) for pid in (7, 8, 9, 10)]
    unseen = Holder(GPU.uuid, None, "unknown", "who knows")
    # This holder means that Slurm does not answer. Jobs of Slurm are no processes of a tenant.
    record = dataclasses.replace(unseen, recorded=True)
    seen = Host("580", "12", "13.0", True, (dataclasses.replace(GPU, held_by=(*holders, unseen, record)), OTHER))
    assert host.processes(seen, "a", GPU.uuid) == (holders[0], unseen)
    assert host.processes(seen, "a", OTHER.uuid) == ()


def test_one_child_reads_all_processes_of_a_tenant(host, tmp_path, monkeypatch):
    """A user may run thousands of processes.

    With one child per process, each blocked child would cost a timeout.
    """
    for pid in range(7, 27):
        process(tmp_path, pid, "OPENFLEET_VGPU=a")
    holders = tuple(Holder(GPU.uuid, None, "process", "pid %d" % pid, pid) for pid in range(7, 27))
    seen = Host("580", "12", "13.0", True, (dataclasses.replace(GPU, held_by=holders),))
    children, fork = [], os.fork

    def counted():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", counted)
    assert host.processes(seen, "a", GPU.uuid) == holders and len(children) == 1
    assert host.names_in_use(["a"]) == (VgpuName("a", tuple(range(7, 27))),) and len(children) == 2


def test_scan_for_names_is_limited_and_unread_processes_may_use_any(host, tmp_path, monkeypatch):
    """Keep a name that may still be in use after the limit of the scan.

    The scan has a limit, because a user may have very many processes and mounts.
    """
    for pid in (7, 8, 9):
        process(tmp_path, pid, "OPENFLEET_VGPU=a")
    clock = iter([0.0, 1.0, 1e9])
    monkeypatch.setattr(vgpu_host.time, "monotonic", lambda: next(clock, 1e9))
    # A child process with its own clock usually runs this function, so the test replaces it.
    monkeypatch.setattr(vgpu_host, "memory_or_none", lambda path: "OPENFLEET_VGPU=a\0")
    assert host.names_in_use(["a", "b"]) == (VgpuName("a", (7, 8)), VgpuName("b", (8,)))


def test_scan_of_processes_has_one_limit_for_all_tenants(host, tmp_path, monkeypatch):
    """The scan holds the host's lock, so its time is limited.

    Tenants may have thousands of processes with very many mounts.
    """
    for pid in (7, 8, 9):
        process(tmp_path, pid, "OPENFLEET_VGPU=a")
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(vgpu_host.time, "monotonic", lambda: next(clock, 1e9))
    monkeypatch.setattr(vgpu_host, "memory_or_none", lambda path: "OPENFLEET_VGPU=a\0")
    holders = [Holder(GPU.uuid, None, "process", "pid %d" % pid, pid) for pid in (7, 8, 9)]
    seen = Host("580", "12", "13.0", True, (dataclasses.replace(GPU, held_by=tuple(holders)), OTHER))
    for name, looked_at in (("a", ["pid 7"]), ("b", [])):
        found = host.processes(seen, name, GPU.uuid)
        assert [holder.who for holder in found if holder.kind == "process"] == looked_at
        assert [holder.pid for holder in found if holder.kind == "unknown"] == [8, 9]
    assert "pid 8, which may belong to the tenant, because it was not checked in time" in found[0].who
    # With a new observation, a new scan starts.
    monkeypatch.setattr(vgpu_host.time, "monotonic", lambda: 0.0)
    again = dataclasses.replace(seen)
    assert host.processes(again, "a", GPU.uuid) == tuple(holders)


def test_unresponsive_process_may_use_any_name_and_is_not_ended(host, tmp_path, monkeypatch):
    process(tmp_path, 7)
    monkeypatch.setattr(vgpu_host, "memory_or_none", lambda path: None)
    assert host.names_in_use(["a", "b"]) == (VgpuName("a", (7,)), VgpuName("b", (7,)))
    holder = Holder(GPU.uuid, None, "process", "pid 7", 7)
    seen = Host("580", "12", "13.0", True, (dataclasses.replace(GPU, held_by=(holder,)), OTHER))
    assert host.processes(seen, "a", GPU.uuid) == ()


def test_carriage_return_in_a_mount_ends_no_line(host, tmp_path):
    process(tmp_path, 7, "PATH=/bin")
    line = "40 22 8:1 / /mnt/x\r1 2 3 4 /etc/openfleet-gpu/vgpu/a rw - tmpfs none rw\n"
    (tmp_path / "proc" / "7" / "mountinfo").write_bytes(line.encode())
    assert host.names_in_use(["a"]) == ()


MOUNTS = """22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw
30 22 8:1 /etc/openfleet-gpu/vgpu/x /etc/openfleet-gpu/vgpu rw - ext4 /dev/sda1 rw
31 22 8:1 / /data\\040disk/etc/openfleet-gpu/vgpu/b rw - ext4 /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("mounted", "variable", "whose"),
    [
        (["a"], "", ["a"]),
        (["a"], "b", ["a"]),
        (["a", "b"], "b", ["b"]),
        (["a", "b"], "", []),
        ([], "a", ["a"]),
        ([], "", []),
    ],
)
def test_processes_of_a_tenant_in_containers_are_found_by_mounts(host, tmp_path, mounted, variable, whose):
    lines = "".join("40 22 8:1 /etc/v/%s /etc/openfleet-gpu/vgpu/%s ro - ext4 /dev/sda1 rw\n" % (n, n) for n in mounted)
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "environ").write_text("PATH=/bin\0" + ("OPENFLEET_VGPU=%s\0" % variable if variable else ""))
    (process / "mountinfo").write_text(MOUNTS + lines)
    holder = Holder(GPU.uuid, None, "process", "pid 7", 7)
    seen = Host("580", "12", "13.0", True, (dataclasses.replace(GPU, held_by=(holder,)), OTHER))
    assert [name for name in ("a", "b") if host.processes(seen, name, GPU.uuid)] == whose


# ---------------------------------------------------------------------- the kernel's limit


BOUND = dataclasses.replace(A, provider="dmem")
SLICE = "sys/fs/cgroup/openfleet.slice/openfleet-vgpu.slice/openfleet-vgpu-a.slice"


@pytest.fixture(name="kernel")
def with_dmem(tmp_path):
    """Return a cgroup tree like that of systemd.

    Each file of the tree keeps the text that was last written to it.
    """
    for folder in ("", "/openfleet.slice", "/openfleet.slice/openfleet-vgpu.slice"):
        (tmp_path / ("sys/fs/cgroup" + folder)).mkdir(parents=True)
    (tmp_path / SLICE).mkdir()
    (tmp_path / SLICE / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (tmp_path / "sys/fs/cgroup/dmem.capacity").write_text(
        "drm/0000:10:00.0/vram0 85899345920\ndrm/0000:10:00.0/stolen 67108864\ndrm/0000:99:00.0/vram0 1\n"
    )
    tools = Tools()
    return VgpuHost([GPU, OTHER], str(tmp_path), tools, str(tmp_path / "proc")), tools


def test_regions_are_matched_by_the_address_of_the_gpu(kernel):
    assert kernel[0].dmem == {GPU.uuid}


def test_slice_limit_is_written_read_and_missing_after_a_boot(kernel, tmp_path):
    host, tools = kernel
    host.write(BOUND)
    assert ["systemctl", "start", "--", "openfleet-vgpu-a.slice"] in tools.called
    assert (tmp_path / SLICE / "dmem.max").read_text() == "drm/0000:10:00.0/vram0 8589934592"
    for folder in ("", "/openfleet.slice", "/openfleet.slice/openfleet-vgpu.slice"):
        assert (tmp_path / ("sys/fs/cgroup" + folder) / "cgroup.subtree_control").read_text() == "+dmem"
    assert host.observe() == (VgpuSeen(BOUND, usage=UNUSED),)
    (tmp_path / SLICE / "dmem.max").write_text("drm/0000:10:00.0/vram0 max\n")
    assert host.observe() == (VgpuSeen(BOUND, ("dmem.max",), UNUSED),)


def test_other_provider_removes_the_slice_limit(kernel, tmp_path):
    host, tools = kernel
    host.write(BOUND)
    host.write(A)
    assert (tmp_path / SLICE / "dmem.max").read_text() == "drm/0000:10:00.0/vram0 max"
    assert not (tmp_path / vgpu_files.folder("a") / "slice").exists()
    assert tools.called[-1] == ["systemctl", "stop", "--", "openfleet-vgpu-a.slice"]


def test_processes_in_the_slice_are_not_ended(kernel, tmp_path):
    host, tools = kernel
    host.write(BOUND)
    (tmp_path / SLICE / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    host.forget("a")
    assert not [command for command in tools.called if "stop" in command]


def test_refusal_of_the_kernel_is_an_error(kernel, tmp_path):
    host, _tools = kernel
    (tmp_path / "sys/fs/cgroup/cgroup.subtree_control").mkdir()
    with pytest.raises(ApplyError, match="provider: preload"):
        host.write(BOUND)


def test_spec_is_readable_json(host, tmp_path):
    host.write(B)
    assert json.loads((tmp_path / vgpu_files.spec_path("b")).read_text())["seats"] == [
        {"gpu_uuid": GPU.uuid, "seat": 1},
        {"gpu_uuid": OTHER.uuid, "seat": 0},
    ]


# --- renamed tenants ---


RENAMED = dataclasses.replace(A, name="b", counted_as="a", aliases=("a",))


def process(root, pid, *words):
    (root / "proc" / str(pid)).mkdir(parents=True)
    (root / "proc" / str(pid) / "environ").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def test_a_renamed_tenant_is_one_tenant_with_two_names(host, tmp_path):
    host.write(A)
    host.write(RENAMED)
    assert host.observe() == (VgpuSeen(RENAMED, usage=UNUSED),)
    host.write(A)
    assert host.observe() == (VgpuSeen(A, usage=UNUSED),)
    assert not [path for path in everything(tmp_path) if "/b" in path or "-b" in path or "alias_of" in path]


def test_renamed_tenant_keeps_the_slice_limit(kernel, tmp_path):
    """Running processes stay in the slice that is named by the tenant's key.

    New processes start in this slice too, whichever of the tenant's names they use.
    """
    host, tools = kernel
    host.write(BOUND)
    (tmp_path / SLICE / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    renamed = dataclasses.replace(RENAMED, provider="dmem")
    for now, names in ((renamed, ["a", "b"]), (dataclasses.replace(renamed, aliases=()), ["b"])):
        host.write(now)
        assert (tmp_path / SLICE / "dmem.max").read_text() == "drm/0000:10:00.0/vram0 8589934592"
        slices = {name: tmp_path / vgpu_files.slice_path(name) for name in ("a", "b")}
        assert [name for name, path in slices.items() if path.exists()] == names
        assert {slices[name].read_text().strip() for name in names} == {"openfleet-vgpu-a.slice"}
        assert host.observe() == (VgpuSeen(now, usage=UNUSED),)
    # After a boot, the slice has no limit yet. The missing limit is reported with the new name.
    (tmp_path / SLICE / "dmem.max").write_text("drm/0000:10:00.0/vram0 max\n")
    assert host.observe()[0].outdated == ("dmem.max",)
    assert not [command for command in tools.called if "stop" in command]
    (tmp_path / SLICE / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    host.forget("b")
    assert tools.called[-1][-1] != "openfleet-vgpu-b.slice"
    assert ["systemctl", "stop", "--", "openfleet-vgpu-a.slice"] in tools.called


def test_names_used_by_processes_are_reported(host, tmp_path):
    host.write(A)
    process(tmp_path, 7, "OPENFLEET_VGPU=a")
    assert host.observe()[0].names_in_use == (), "it has only one name"
    host.write(RENAMED)
    for pid, words in ((8, ["HOME=/", "OPENFLEET_VGPU=a"]), (9, ["OPENFLEET_VGPU=ab"]), (10, [])):
        process(tmp_path, pid, *words)
    assert host.observe()[0].names_in_use == (VgpuName("a", (7, 8)),)


def test_the_last_tenant_leaves_nothing_of_all_its_names(host, tmp_path):
    host.write(A)
    host.write(RENAMED)
    host.forget("b")
    assert not [path for path in everything(tmp_path) if not path.startswith("proc/")]
    assert not (tmp_path / "etc/openfleet-gpu").exists()


@pytest.mark.parametrize("first", ["a", "b"])
def test_tenant_named_like_the_key_of_another_is_removed_separately(host, tmp_path, first):
    """Remove each tenant separately, although files of both are in one folder."""
    host.write(A)
    host.write(dataclasses.replace(RENAMED, aliases=()))
    before = {path: (tmp_path / path).read_text() for path in everything(tmp_path)}
    host.write(dataclasses.replace(A, counted_as="a.2", seats=(VgpuSeat(GPU.uuid, 1),)))
    assert [(seen.tenant.name, seen.tenant.key, seen.outdated) for seen in host.observe()] == [
        ("a", "a.2", ()),
        ("b", "a", ()),
    ]
    host.forget(first)
    (left,) = host.observe()
    assert (left.tenant.name, left.outdated) == ("b" if first == "a" else "a", ())
    if first == "a":
        assert {path: (tmp_path / path).read_text() for path in everything(tmp_path)} == before
    else:
        host.forget("a")
        assert everything(tmp_path) == []


def test_restored_own_name_is_shown(host, tmp_path):
    """Show a tenant again under its own name.

    The limiter ignores a tenant's folder if the folder has the file `alias_of`.
    """
    host.write(A)
    (tmp_path / vgpu_files.alias_path("a")).write_text("b\n")
    assert host.observe()[0].outdated == (vgpu_files.alias_path("a"),)
    host.write(A)
    assert host.observe() == (VgpuSeen(A, usage=UNUSED),)
