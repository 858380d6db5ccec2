# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the agent's report, and how it attributes processes to tenants."""

from __future__ import annotations

import dataclasses
import grp
import os
import struct
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_nvml import (
    Found,
    OthersSlot,
    Process,
    Processes,
    Region,
    Report,
    Reporter,
    Slot,
    read_region,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import (
    VgpuSeat,
    VgpuTenant,
    region_path,
)

UUID = "GPU-5c890000-0000-4000-8000-000000000001"
COLUMN = UUID[4:].replace("-", "")
TENANT = VgpuTenant("a", 1 << 30, 50, (VgpuSeat(UUID, 0),))
GROUP = grp.getgrgid(os.getgid())
NOT_NAMED, NO_SLOT = (1 << 64) - 1, (1 << 32) - 1
ROWS_AT = 432


def process(proc: Path, pid: int, groups: str = "", uid: int = 1000, gid: int = 1000, name: str = "a") -> None:
    """Add a process to the simulated /proc. In its own PID namespace, its pid is 5."""
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/pid").symlink_to("pid:[4026532000]")
    (folder / "environ").write_text("OPENFLEET_VGPU=%s\0" % name)
    (folder / "mountinfo").write_text("")
    (folder / "stat").write_text("%d (a) b) S %s" % (pid, " ".join(str(n) for n in range(4, 30))))
    ids = "\t".join([str(uid)] * 4), "\t".join([str(gid)] * 4)
    (folder / "status").write_text("Name:\tx\nUid:\t%s\nGid:\t%s\nGroups:\t%s \nNSpid:\t%d\t5\n" % (*ids, groups, pid))


@pytest.mark.parametrize(
    ("group", "ids", "counts"),
    [
        (None, {}, True),
        (GROUP.gr_name, {"uid": 0}, True),
        (GROUP.gr_name, {"gid": GROUP.gr_gid}, True),
        (GROUP.gr_name, {"groups": "7 %d 9" % GROUP.gr_gid}, True),
        (GROUP.gr_name, {"gid": GROUP.gr_gid + 1, "groups": "7 9"}, False),
        ("no-such-group", {"groups": "7"}, False),
        (None, {"name": "b"}, False),
    ],
)
def test_process_counts_only_for_a_tenant_that_it_may_use(tmp_path, group, ids, counts):
    """Ignore the variable alone.

    Any user of the host can set it, and could then use up a tenant's quota.
    """
    process(tmp_path / "proc", 7, **ids)
    found = Processes(tmp_path, str(tmp_path / "proc")).of([7, 8], [dataclasses.replace(TENANT, group=group)])
    assert found == ({7: Process("a", 5, 4026532000)} if counts else {})


def slot(pid: int, used: int, number: int = 0, nonce: int = 3) -> Slot:
    return Slot(number, nonce, pid, 1, (used, *[0] * 15))


def told(report: Report, memory: dict[int, int], before: list[Slot], after: list[Slot]) -> tuple[tuple, list[tuple]]:
    """Return the values that the agent wrote into its report.

    These are the slot and the bytes for other processes, and (slot, nonce, beyond, steady) of each process.
    """
    processes = {pid: Process("a", pid, 1) for pid in memory}
    regions = [Region(tuple(slots), {COLUMN: 0}) for slots in (before, after)]
    report.tell(17, *regions, Found([COLUMN], {COLUMN: memory}, processes))
    report.write()
    data = report._path.read_bytes()
    head = struct.unpack_from("=QQqqIIII256sQ", data)
    rows = [struct.unpack_from("=II16Q16Q", data, ROWS_AT + n * 264) for n in range(head[5])]
    assert head[3:5] == (17, 1) and head[1] % 2 == 0 and head[8][:16].hex() == COLUMN
    return (head[6], head[9]), [(row[0], row[1], row[2], row[18]) for row in rows]


@pytest.fixture
def report(tmp_path):
    (tmp_path / vgpu_files.agent_folder("a")).mkdir(parents=True)
    (tmp_path / region_path("a")).parent.mkdir(parents=True)
    (tmp_path / region_path("a")).write_bytes(bytes(vgpu_files.REGION_BYTES))
    return Report(tmp_path, "a")


def test_processes_that_started_or_ended_meanwhile_are_not_charged(report):
    assert told(report, {5: 100}, [slot(5, 30)], [slot(5, 40)]) == ((NO_SLOT, 0), [(0, 3, 60, 0)])
    assert told(report, {5: 100}, [slot(5, 50)], [slot(5, 40)])[1] == [(0, 3, 50, 50)]
    assert told(report, {5: 20}, [slot(5, 50)], [slot(5, 40)])[1] == [(0, 3, 0, 0)]


def test_reused_slot_belongs_to_the_new_process(report):
    told(report, {5: 100}, [slot(5, 0)], [slot(5, 0)])
    assert told(report, {6: 70}, [slot(5, 90)], [slot(6, 10, nonce=4)])[1] == [(0, 4, 60, 0)]


def test_processes_without_a_slot_are_charged_together_after_two_readings(report):
    assert told(report, {5: 100, 6: 7}, [], []) == ((NO_SLOT, 0), [])
    (number, others), rows = told(report, {5: 90, 6: 8, 7: 1000}, [], [])
    assert (number, others, rows) == (1023, 97, [])
    assert told(report, {7: 1000}, [], [slot(7, 0)]) == ((NO_SLOT, 0), [(0, 3, 1000, 0)])


def test_slot_of_other_processes_is_unused(tmp_path, report):
    path = tmp_path / region_path("a")
    first, second = OthersSlot(path), OthersSlot(path)
    first.take()
    second.take()
    assert (first.number, second.number) == (1023, 1022)
    before = first.nonce
    first.leave()
    first.take()
    assert (first.number, first.nonce) == (1023, before + 1)


def test_dead_processes_are_skipped(tmp_path, report):
    """Skip dead processes, so that the agent does not wake unused GPUs every second."""
    path = tmp_path / region_path("a")
    data = bytearray(vgpu_files.REGION_BYTES)
    struct.pack_into("=QIIII", data, 0, 0x3155504756464F00, 1, len(data), 0, 1024)
    for number in (3, 1023):
        struct.pack_into("=IIq", data, 64 + 16 * 48 + number * 320, number == 3, 7, 5)
    path.write_bytes(data)
    assert read_region(path).slots == ()
    living = OthersSlot(path)
    living.take()
    data[64 + 16 * 48 + 1023 * 320] = 1
    path.write_bytes(data)
    assert [(slot.number, slot.pid) for slot in read_region(path).slots] == [(1023, 5)]


def test_invalid_region_is_empty(tmp_path):
    for content in (b"", b"\0" * 100, b"x" * 5000):
        (tmp_path / "file").write_bytes(content)
        assert read_region(tmp_path / "file") == Region((), {})
    os.mkfifo(tmp_path / "pipe")
    assert read_region(tmp_path / "pipe") == read_region(tmp_path / "none") == Region((), {})


def test_missing_nvml_is_reported_once_and_nothing_is_written(tmp_path, report, monkeypatch):
    """Write no report without NVML, so that programs call NVML themselves."""
    from ansible_collections.openfleet.gpu.plugins.module_utils.errors import DriverAbsentError
    from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import agent_nvml

    def absent() -> None:
        raise DriverAbsentError("this host", "there is no driver", "Install it.", call="nvmlInit")

    monkeypatch.setattr(agent_nvml, "BoundedSession", absent)
    monkeypatch.setattr(agent_nvml, "_FAILED_SECONDS", 0.0)
    (tmp_path / vgpu_files.spec_path("a")).parent.mkdir(parents=True)
    import json

    from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import to_data

    (tmp_path / vgpu_files.spec_path("a")).write_text(json.dumps(to_data(TENANT)))
    said: list[str] = []
    reporter = Reporter(tmp_path, str(tmp_path / "state"), said.append)
    reporter.look()
    reporter._idle_until = 0.0
    reporter.look()
    assert len(said) == 1 and "there is no driver" in said[0]
    assert not (tmp_path / vgpu_files.nvml_report_path("a")).exists()


def test_hanging_call_is_reported_once_and_nothing_is_written(tmp_path, report, monkeypatch):
    """Do not take a hanging call for a lost GPU.

    A hanging call may mean that the whole driver hangs. If a GPU is lost, only its column is missing.
    """
    import json

    from ansible_collections.openfleet.gpu.plugins.module_utils.errors import UnansweredCallError
    from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import agent_nvml
    from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import to_data

    class Hanging:
        def __enter__(self):
            return self

        def __exit__(self, *_error):
            pass

        def memory_by_process(self, gpu):
            problem = "nvmlDeviceGetComputeRunningProcesses did not return within 30 s"
            raise UnansweredCallError(
                "gpu %s" % gpu, problem, call="nvmlDeviceGetComputeRunningProcesses", changes=False
            )

    monkeypatch.setattr(agent_nvml, "BoundedSession", Hanging)
    monkeypatch.setattr(agent_nvml, "_FAILED_SECONDS", 0.0)
    path = tmp_path / vgpu_files.spec_path("a")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(to_data(TENANT)))
    said: list[str] = []
    reporter = Reporter(tmp_path, str(tmp_path / "state"), said.append)
    for _again in range(2):
        reporter._idle_until = 0.0
        reporter.look()
    (line,) = said
    assert "nvmlDeviceGetComputeRunningProcesses did not return within 30 s" in line
    assert not (tmp_path / vgpu_files.nvml_report_path("a")).exists()
