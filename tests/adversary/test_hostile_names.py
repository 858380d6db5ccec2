# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that hostile names become short lines of text in every result of a scan.

A folder replaces /proc of another host, and functions that return texts replace tools. Other files in this folder test
real users, processes and containers.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import plan as mps_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.host import MpsHost
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.service import MpsService
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, instance
from tests.unit.module_utils.techniques.mps.mps_hosts import DAEMON, DEVICES, make_host

OF = host(gpu(0), gpu(1, instance(1, 0)))
POD = "9a15d2b5-c152-46b9-96e0-d57032629e1f"
ID = "3f2a" * 16
NAMES = [
    "a\x1b[2J\x1b]0;root\x07b",
    "a\rb\x85c\u2028d\u2029e",
    "\u202egnp.exe\u2066",
    "{{ lookup('pipe', 'id') }}{% raw %}",
    "../../../etc/cron.d/x",
    "--help",
    "x" * 10_000,
    "\udcff\udc80",
    "",
    " ",
    "a b;c|d&e$(f)`g`",
    "podman container billing-api",
]


class Tools:
    """Simulate a Slurm and a Docker with jobs and containers of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, command, **_options):
        if command[0] == "docker":
            said = "%s %s\n" % (ID, self.name)
        elif command[0] == "squeue":
            said = self.name + "\n" if "--jobs" in command else "17 alice\n"
        elif command[-2:] == ["node", "gpu-a"]:
            said = "NodeName=gpu-a Gres=gpu:2 GresUsed=gpu:1(IDX:0)"
        else:
            said = (
                "JobId=17 JobName=%s UserId=alice(1) JobState=RUNNING JOB_GRES=gpu:1  Nodes=gpu-a CPU_IDs=0 Mem=1"
                " GRES=gpu:1(IDX:0) X=" % self.name
            )
        return subprocess.CompletedProcess(command, 0, said, "")


@pytest.fixture
def there(tmp_path):
    """Return the holders for one process of each kind.

    The kinds are processes of users, units, jobs and containers. Each process has the GPU open or was given it.
    """
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()

    def make(name: str) -> list:
        proc = Proc(tmp_path / "proc")
        # Remove characters that folders and control groups cannot have.
        path = name.replace("/", "_").replace("\n", "_").replace("\0", "_")[:200] or "_"
        proc.process(5, "slurmd", words=("-N", "gpu-a"))
        cgroups = (
            "0::/system.slice/%s.service" % path,
            "0::/system.slice/docker-%s.scope" % ID,
            "0::/machine.slice/systemd-nspawn@%s.service/payload" % path,
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/%s.service" % path,
            "0::/system.slice/slurmstepd.scope/job_17/%s" % path,
        )
        for pid, cgroup in enumerate(cgroups, 20):
            proc.process(pid, "train", tmp_path / "dev/nvidia0", cgroup=cgroup, uid=1000, words=(name, name))
            # The kernel stores a process name of 15 arbitrary bytes.
            proc.write("%d/comm" % pid, path[:15] + "\n")
        checkpoint = tmp_path / "lib/kubelet/device-plugins/kubelet_internal_checkpoint"
        checkpoint.parent.mkdir(parents=True)
        entry = {"PodUID": POD, "ContainerName": name, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-1"]}}
        checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
        (tmp_path / "lib/kubelet/pods" / POD).mkdir(parents=True)
        return list(
            find_holders(OF, str(proc.folder), str(tmp_path / "dev"), Tools(name), str(tmp_path / "lib/kubelet"))
        )

    return make


@pytest.mark.parametrize("name", NAMES, ids=map(str, range(len(NAMES))))
def test_names_are_short_lines(there, name):
    found = there(name)
    assert {holder.kind for holder in found} >= {"device_handle", "slurm", "kubelet"}
    for holder in found:
        for text in (holder.who, holder.user, holder.command, holder.unit_or_container, holder.job):
            assert text is None or (text.isprintable() and len(text) <= 4000)
    # No name can turn another process into a unit or container of root.
    mine = {holder.pid: holder.unit_or_container for holder in found if holder.pid}
    assert mine[23] == "user@1000.service" and mine[24] == "slurmstepd.scope"
    assert (mine[22] or "").startswith("container ")


@pytest.mark.parametrize("name", NAMES, ids=map(str, range(len(NAMES))))
def test_mps_clients_are_short_lines(tmp_path, name):
    proc = Proc(tmp_path / "proc")
    proc.process(77, "train", uid=1000, words=(name,))
    client = MpsHost(str(tmp_path))._client(77, 41, 9)
    assert client.command.isprintable() and len(client.command) <= 1000


# --- processes that pose as an MPS daemon, which root in a client's container can do --------------------------------

ESCAPES = "\x1b[2J\x1b]0;root\x07\r\x85\u202e"
ANSWERS = {
    "a refusal": "Invalid " + ESCAPES,
    "a long refusal": "Invalid " + ESCAPES + "x" * 5_000_000,
    "a long answer": "x" * 5_000_000,
    "a long number": "1" * 50_000,
    "digits that are no numbers": "\u00b2\n\u0663\n",
    "many pids": "".join("%d\n" % pid for pid in range(200_000)),
    "escapes": ESCAPES,
}


@pytest.mark.parametrize("fails", [False, True], ids=["an answer", "a failure"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers_at_a_daemons_pipes_are_short_lines(tmp_path, answer, fails):
    fleet = make_host(tmp_path)
    MpsHost(str(tmp_path), fleet).start(DAEMON, DEVICES)

    def run(command, **options):
        if command == ["nvidia-cuda-mps-control"]:
            return subprocess.CompletedProcess(command, int(fails), "" if fails else answer, answer if fails else "")
        return fleet(command, **options)

    (seen,) = MpsHost(str(tmp_path), run).observe()
    service = MpsService(private=True)
    service.seen = (seen,)
    (line,) = service.describe(host(gpu(0)))
    blocked = [holder.who for holder in mps_plan.clients(seen)]
    for text in (line, seen.problem or "", *blocked):
        assert text.isprintable() and len(text) < 2000
    assert seen.active_thread_percentage is None and len(blocked) == 1
    proc = Proc(tmp_path / "other")
    proc.process(5, "nvidia-cuda-mps-control")
    for holder in find_holders(OF, str(proc.folder), str(tmp_path / "dev"), run, str(tmp_path)):
        assert holder.who.isprintable() and len(holder.who) < 2000
