# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test holders that are pods of the kubelet or MPS clients.

The kubelet's checkpoint follows kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint. The answers of MPS
follow https://docs.nvidia.com/deploy/mps/.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.device_ids import named as named_device
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, instance, named, never, no_tools, opened

# These tests start programs under the names of real daemons. Other tests that scan /proc at the same time would list
# them.
pytestmark = pytest.mark.alone


FOUR = host(*(gpu(i) for i in range(4)))


def test_process_without_an_open_gpu_is_not_ended_by_a_servers_answer(tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidia0").touch()
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")
    proc.process(6, "nvidia-cuda-mps-server", dev / "nvidia0", uid=1000, parent=5)
    proc.process(7, "postgres", uid=70, cgroup="0::/system.slice/postgresql.service")
    proc.process(8, "train", dev / "nvidia0", uid=1000)
    answers = {"get_server_list\n": "6\n", "get_client_list 6\n": "7\n8\n"}

    def control(command, input, env):
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    found = find_holders(host(gpu(0)), str(proc.folder), str(dev), control, str(tmp_path))
    assert {(h.pid, h.kind, h.unit_or_container) for h in found} == {
        (None, "mps", None),
        (6, "device_handle", None),
        (8, "mps", None),
    }
    (named_only,) = (h for h in found if h.pid is None)
    assert "pid 7 (postgres" in named_only.who and "has no GPU open" in named_only.who


NOT_KNOWN = "may not be a client of this server and is not ended"


@pytest.mark.parametrize(
    ("server", "uid", "parent", "opened", "problem"),
    [
        ("nvidia-cuda-mps-server", 2000, 5, "nvidia0", None),
        # An MPS server that runs as root serves all users.
        ("nvidia-cuda-mps-server", 0, 5, "nvidia0", None),
        # Root in a client's container can answer in place of the daemon, and name a process that uses another GPU.
        ("nvidia-cuda-mps-server", 0, 5, "nvidia1", "has none of the server's GPUs open and is not ended"),
        ("nvidia-cuda-mps-server", 1000, 5, "nvidia0", NOT_KNOWN),
        # This process is no child of the daemon. Any user can start a process with the name of the server.
        ("nvidia-cuda-mps-server", 2000, 1, "nvidia0", NOT_KNOWN),
        ("nvidia-cuda-mps-server", 0, 1, "nvidia0", NOT_KNOWN),
        ("nvidia-persistenced", 0, 5, "nvidia0", NOT_KNOWN),
        (None, None, None, "nvidia0", "has none of the server's GPUs open and is not ended"),
    ],
)
def test_client_is_ended_only_if_the_kernel_confirms_it(tmp_path, server, uid, parent, opened, problem):
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("nvidia0", "nvidia1"):
        (dev / name).touch()
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")
    if server:
        proc.process(6, server, dev / "nvidia0", uid=uid, parent=parent)
    proc.process(7, "train", dev / opened, uid=2000)
    answers = {"get_server_list\n": "6\n", "get_client_list 6\n": "7\n"}

    def control(command, input, env):
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    found = find_holders(host(gpu(0), gpu(1)), str(proc.folder), str(dev), control, str(tmp_path))
    named_by_server = [h for h in found if h.kind == "mps"]
    assert named_by_server and {h.pid for h in named_by_server} == ({None} if problem else {7})
    assert not problem or problem in named_by_server[0].who
    # A process that has a GPU's files open is a holder, whatever an MPS server reports.
    assert (("GPU-1" if opened == "nvidia1" else "GPU-0"), 7) in {(h.gpu_uuid, h.pid) for h in found}


def test_implausibly_long_answer_of_a_daemon_is_ignored(tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")

    def control(command, input, env):
        assert input == "get_server_list\n"
        return subprocess.CompletedProcess(command, 0, "\n".join(map(str, range(100, 600))), "")

    (holder,) = find_holders(host(gpu(0)), str(proc.folder), str(tmp_path / "dev"), control, str(tmp_path))
    assert holder.kind == "unknown" and "it names 500 servers" in holder.who


POD = "9a15d2b5-c152-46b9-96e0-d57032629e1f"


@pytest.fixture
def pods(tmp_path):
    """Return a function that turns checkpoint entries into the holders of the kubelet."""
    proc, folder = Proc(tmp_path / "proc"), tmp_path / "lib" / "kubelet"
    checkpoint = folder / "device-plugins" / "kubelet_internal_checkpoint"
    checkpoint.parent.mkdir(parents=True)

    def look(of, *entries, text=None):
        data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0"]}}
        checkpoint.write_text(text or json.dumps({"Data": data, "Checksum": 3660592824}))
        return find_holders(of, str(proc.folder), str(tmp_path), no_tools, str(folder))

    look.proc, look.folder = proc, folder
    (folder / "pods" / POD).mkdir(parents=True)
    return look


def entry(devices, resource="nvidia.com/gpu"):
    return {"PodUID": POD, "ContainerName": "app", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": "Cg=="}


def test_pod_holds_its_allocated_devices(pods):
    of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
    (holder,) = pods(of, entry({"-1": ["GPU-0"]}), entry({"0": ["0000:00:1f.0"]}, "intel.com/sriov"))
    assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-0", None, "kubelet")
    assert (holder.job, holder.unit_or_container) == (POD, "app")
    # Until Kubernetes 1.19, the device IDs are one list. Later releases group them by NUMA node. If a GPU is shared,
    # the ID of each replica ends with a number.
    (holder,) = pods(of, entry(["MIG-2"], "nvidia.com/mig-2g.20gb"))
    assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
    (holder,) = pods(of, entry({"0": ["GPU-0::3"], "1": ["GPU-0::4"]}, "nvidia.com/gpu.shared"))
    assert holder.gpu_uuid == "GPU-0"
    assert pods(of, entry({"0": ["GPU-of-a-board-that-was-taken-out"]})) == ()


A, B = "GPU-3f0dd0a1-7c44-46a1-9e2d-2b6bc5d4b0a1", "GPU-3f0dd0a1-7c44-46a1-9e2d-2b6bc5d4b0a2"


PART = "MIG-7d1a2c11-52f5-5a6a-8a54-0f7d3c0e1b11"


@pytest.fixture
def shared():
    """Return two GPUs with UUIDs. The second has instance 5, which starts at slice 4."""
    split = gpu(1, dataclasses.replace(instance(5, 4), compute_instances=()))
    part = dataclasses.replace(
        split.mig.instances[0],
        compute_instances=(dataclasses.replace(instance(5, 4).compute_instances[0], mig_uuid=PART),),
    )
    split = dataclasses.replace(split, uuid=B, mig=dataclasses.replace(split.mig, instances=(part,)))
    return host(dataclasses.replace(gpu(0), uuid=A), split)


@pytest.mark.parametrize(
    ("resource", "device", "place"),
    [
        ("nvidia.com/gpu", A + "-3", (A, None)),
        ("volcano.sh/vgpu-number", A + "-3", (A, None)),
        ("volcano.sh/vgpu-memory", A + "-memory-17", (A, None)),
        ("volcano.sh/vgpu-cores", A + "-core-99", (A, None)),
        ("volcano.sh/gpu-memory", "1-204", (B, None)),
        ("example.org/our-shares", A + "-12", (A, None)),
        ("aliyun.com/gpu-mem", A + "-_-3", (A, None)),
        ("nvidia.com/gpu.shared", A + "::7", (A, None)),
        ("nvidia.com/mig-2g.20gb", PART, (B, 5)),
        ("nvidia.com/mig-2g.20gb", PART + "::2", (B, 5)),
        ("volcano.sh/vgpu-number", PART + "-2", (B, 5)),
        ("nvidia.com/gpu", "MIG-%s/5/0" % B, (B, 5)),
        ("nvidia.com/gpu", "MIG-%s/5/0-1" % B, (B, 5)),
        ("nvidia.com/gpu", "nvidia0", (A, None)),
        ("nvidia.com/gpu", "nvidia0/vgpu1", (A, None)),
        ("nvidia.com/gpu", "nvidia1/gi5", (B, 5)),
        ("nvidia.com/gpu", "nvidia1/gi5/vgpu0", (B, 5)),
        ("nvidia.com/TU104GL_Tesla_T4", "0000:3b:00.0", (A, None)),
        ("example.org/cards", "0000:3B:00.0", (A, None)),
    ],
)
def test_device_ids_of_all_plugins_name_gpus(pods, shared, resource, device, place):
    (holder,) = pods(shared, entry({"0": [device]}, resource))
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id, holder.job) == ("kubelet", *place, POD)
    # To free the device, a drain evicts the pod that holds it.
    assert Disturbance("gpu 0", (holder,)).pods == (POD,)


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("intel.com/sgx", "epc-3"),
        ("rdma/hca_shared_devices_a", "17"),
        ("nvidia.com/hostdev", "mlx5_4"),
        ("nvidia.com/rdma_shared", "3"),
        ("smarter-devices/fuse", "fuse-1"),
        ("amd.com/gpu", "card0-renderD128"),
        ("volcano.sh/vgpu-number", "GPU-00000000-7c44-46a1-9e2d-2b6bc5d4b0a1-3"),
        ("nvidia.com/mig-2g.20gb", "MIG-00000000-52f5-5a6a-8a54-0f7d3c0e1b11"),
        ("nvidia.com/gpu", "nvidia1/gi6/vgpu0"),
        ("nvidia.com/gpu", "nvidia7"),
        ("nvidia.com/hostdev", "0000:5e:00.2"),
        # This is the UUID of another device, although it starts with the UUID of this GPU.
        ("nvidia.com/gpu", A + "7"),
    ],
)
def test_ids_of_other_or_missing_devices_hold_nothing(pods, shared, resource, device):
    assert pods(shared, entry({"0": [device]}, resource)) == ()


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("nvidia.com/gpu", "slot-c"),
        ("nvidia.com/gpu", "0"),
        ("tencent.com/vcuda-core", "tencent.com/vcuda-core-17"),
        ("4pd.io/vgpu", "x"),
        ("nvidia.com/mig-1g.5gb", "part-1"),
    ],
)
def test_unreadable_id_of_a_gpu_resource_blocks_every_gpu(pods, shared, resource, device):
    found = pods(shared, entry({"0": [device]}, resource))
    assert [(h.kind, h.gpu_uuid, h.job) for h in found] == [("unknown", A, POD), ("unknown", B, POD)]
    assert device in found[0].who and resource in found[0].who


def test_allocated_gpu_is_from_the_plugins_answer(pods, shared):
    """The device plugin's answer names the GPU, and the ID in the checkpoint does not.

    The schedulers of HAMi and Volcano choose the GPU, and the kubelet chooses any free ID of the resource.
    """
    value = b"NVIDIA_VISIBLE_DEVICES\x12\x28" + B.encode()
    answer = base64.b64encode(b"\x0a" + bytes([len(value) + 2]) + b"\x0a\x16" + value + b"\x12\x00").decode()
    (holder,) = pods(shared, dict(entry({"0": [A + "-3"]}, "volcano.sh/vgpu-number"), AllocResp=answer))
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id) == ("kubelet", B, None)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", {(A, None)}),
        ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1002", None),
        ("0000:3b:00.4", {(A, None)}),
        ("17", {(A, None)}),
        ("18", set()),
        ("19", None),
    ],
)
def test_devices_of_virtual_machines_are_found_in_sys(tmp_path, shared, device, place):
    """Three kinds of devices are passed to virtual machines.

    A mediated device is below its GPU, a virtual function links to it, and an IOMMU group lists its devices.
    """
    sys = tmp_path / "sys"
    card = sys / "devices/pci0000:3a/0000:3b:00.0"
    mediated = card / "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    mediated.mkdir(parents=True)
    for name, target in (("0000:3b:00.0", card), ("0000:3b:00.4", card.parent / "0000:3b:00.4")):
        target.mkdir(exist_ok=True)
        (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (sys / "bus/pci/devices" / name).symlink_to(target)
    (card.parent / "0000:3b:00.4/physfn").symlink_to("../0000:3b:00.0")
    (sys / "bus/mdev/devices").mkdir(parents=True)
    (sys / "bus/mdev/devices" / mediated.name).symlink_to(mediated)
    for group, name in (("17", "0000:3b:00.4"), ("18", "0000:5e:00.0")):
        (sys / "kernel/iommu_groups" / group / "devices" / name).mkdir(parents=True)
    assert named_device(shared, Devices(shared, str(tmp_path)), device, "nvidia.com/GRID_A100-20C", str(sys)) == place


CLAIM = "067798be-454e-4be4-9047-1aa06aea63f7"


def claimed(*devices, driver="gpu.nvidia.com"):
    """Return the kubelet's DRA checkpoint.

    The format is that of kubernetes/kubernetes, pkg/kubelet/cm/dra/state, since 1.32.
    """
    listed = [
        {"PoolName": "n1", "DeviceName": d, "RequestNames": ["r"], "CDIDeviceIDs": ["k8s.x/d=" + d]} for d in devices
    ]
    state = {"ClaimUID": CLAIM, "ClaimName": "train-gpu", "Namespace": "ml", "PodUIDs": {POD: {}}}
    entries = [dict(state, DriverState={driver: {"Devices": listed}})]
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": entries}
    return json.dumps({"Data": json.dumps(data), "Checksum": 1})


@pytest.mark.parametrize(
    ("state", "place"),
    [
        (claimed("gpu-0"), (A, None)),
        (claimed("gpu-1-mig-2g20gb-14-4"), (B, 5)),
        (claimed("gpu-1-mig-14-4-2"), (B, 5)),
        (
            json.dumps(
                {
                    "version": "v1",
                    "entries": [
                        {
                            "DriverName": "gpu.resource.nvidia.com",
                            "ClaimUID": CLAIM,
                            "ClaimName": "old",
                            "Namespace": "ml",
                            "PodUIDs": {POD: {}},
                            "CDIDevices": {"gpu.resource.nvidia.com": ["k8s.gpu.resource.nvidia.com/gpu=gpu-0"]},
                        }
                    ],
                    "checksum": 1,
                }
            ),
            (A, None),
        ),
    ],
)
def test_claim_of_a_pod_holds_its_device(pods, shared, state, place):
    (pods.folder / "dra_manager_state").write_text(state)
    (holder,) = pods(shared)
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id, holder.job) == ("kubelet", *place, POD)
    assert "claim ml/" in holder.who


@pytest.mark.parametrize("device", [A.lower(), "tenant-serving"])
def test_lease_of_a_claim_holds_only_its_gpu(pods, shared, device):
    """Take a claim's GPU from its CDI devices.

    The plugin for leases names its GPUs there.
    """
    entry = json.loads(json.loads(claimed(device, driver="gpu.openfleet.io"))["Data"])
    (listed,) = entry["ClaimInfoStateList"][0]["DriverState"]["gpu.openfleet.io"]["Devices"]
    listed["CDIDeviceIDs"] = ["openfleet.io/vgpu=lease-1", "nvidia.com/gpu=%s" % A]
    (pods.folder / "dra_manager_state").write_text(json.dumps({"Data": json.dumps(entry), "Checksum": 1}))
    (holder,) = pods(shared)
    assert (holder.kind, holder.gpu_uuid, holder.job) == ("kubelet", A, POD)


def test_devices_of_a_claim_are_from_the_drivers_checkpoint(pods, shared):
    (pods.folder / "dra_manager_state").write_text(claimed("gpu-0"))
    concrete = {"parentMinor": 1, "giId": 5, "ciId": 0, "migUUID": PART, "parentUUID": B}
    prepared = [{"devices": [{"gpu": None, "mig": {"concrete": concrete, "device": {}}}], "configState": {}}]
    (pods.folder / "plugins/gpu.nvidia.com").mkdir(parents=True)
    (pods.folder / "plugins/gpu.nvidia.com/checkpoint.json").write_text(
        json.dumps({"checksum": 1, "v2": {"checksum": 2, "preparedClaims": {CLAIM: {"preparedDevices": prepared}}}})
    )
    (holder,) = pods(shared)
    assert (holder.gpu_uuid, holder.gpu_instance_id) == (B, 5)


def test_claims_of_other_drivers_hold_nothing_and_unknown_devices_all(pods, shared):
    for driver, devices in (("compute-domain.nvidia.com", ["channel-0"]), ("gpu.intel.com", ["0000-03-00-0"])):
        (pods.folder / "dra_manager_state").write_text(claimed(*devices, driver=driver))
        assert pods(shared) == ()
    (pods.folder / "dra_manager_state").write_text(claimed("slice-a"))
    assert [h.kind for h in pods(shared)] == ["unknown", "unknown"]
    (pods.folder / "dra_manager_state").write_text("{")
    found = pods(shared)
    assert [h.kind for h in found] == ["unknown", "unknown"] and "dra_manager_state" in found[0].who


def test_removed_pod_holds_nothing(pods):
    of = host(gpu(0))
    (holder,) = pods(of, entry({"0": ["GPU-0"]}))
    assert "has no running process" in holder.who
    pods.proc.process(70, "python3", cgroup="0::/kubepods.slice/kubepods-pod%s.slice/x" % POD.replace("-", "_"))
    (holder,) = pods(of, entry({"0": ["GPU-0"]}))
    assert "nothing runs" not in holder.who
    (pods.folder / "pods" / POD).rmdir()
    assert len(pods(of, entry({"0": ["GPU-0"]}))) == 1
    pods.proc.write("70/cgroup", "0::/system.slice/other.service\n")
    assert pods(of, entry({"0": ["GPU-0"]})) == ()


def test_allocations_before_the_boot_hold_nothing_until_the_kubelet_runs(pods):
    def booted(seconds_ago):
        pods.proc.write("stat", "cpu 0 0\nbtime %d\n" % (time.time() - seconds_ago))
        pods.proc.write("1/stat", "1 (a (name) S) S " + " ".join(["0"] * 49))
        return pods(host(gpu(0)), entry({"0": ["GPU-0"]}))

    assert len(booted(3600)) == 1
    # The kubelet wrote this list of devices one hour before the boot.
    assert booted(-3600) == ()
    pods.proc.process(80, "kubelet")
    assert len(booted(-3600)) == 1


def test_pod_has_its_name_from_the_logs(pods, tmp_path):
    (tmp_path / "log" / "pods" / ("ml_train-0_" + POD)).mkdir(parents=True)
    (holder,) = pods(host(gpu(0)), entry({"0": ["GPU-0"]}))
    assert "container app of pod ml/train-0 (nvidia.com/gpu)" in holder.who


def test_unreadable_checkpoint_holds_every_gpu(pods):
    for text in ("{", "{}", '{"Data": {"PodDeviceEntries": [{"PodUID": "x"}]}}'):
        found = pods(host(gpu(0), gpu(1)), text=text)
        assert [h.kind for h in found] == ["unknown", "unknown"]
        assert "kubelet_internal_checkpoint" in found[0].who


def test_mps_client_holds_the_open_gpus_of_its_server(tmp_path):
    dev = tmp_path / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidia-caps/nvidia-cap156"):
        (dev / name).touch()
    asked = []

    def control(command, input, env):
        assert command == ["nvidia-cuda-mps-control"]
        asked.append((input, env))
        answers = {"get_server_list\n": "%d\n" % server, "get_client_list %d\n" % server: "%d\n" % client.pid}
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
    daemon, program = named(tmp_path, "nvidia-cuda-mps-control"), named(tmp_path, "nvidia-cuda-mps-server")
    nodes = (dev / "nvidia1", dev / "nvidia-caps/nvidia-cap156")
    with opened(*nodes) as client:
        starts = [str(daemon), "-c", "import subprocess, sys; subprocess.call(sys.argv[1:])"]
        with opened(*nodes, program=program, within=starts, CUDA_MPS_PIPE_DIRECTORY="/run/mps") as running:
            server = int(Path("/proc/%d/task/%d/children" % (running.pid, running.pid)).read_text())
            found = find_holders(of, dev=str(dev), run=control, kubelet_directory=str(tmp_path))
            (holder,) = (h for h in found if h.pid == client.pid and h.kind == "mps")
            assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
            (holder,) = (h for h in found if h.pid == server)
            assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
            assert [env for _input, env in asked] == [{"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}] * 2
            found = find_holders(of, dev=str(dev), run=no_tools, kubelet_directory=str(tmp_path))
            assert [(h.gpu_uuid, h.kind) for h in found if h.pid == running.pid] == [
                ("GPU-0", "unknown"),
                ("GPU-1", "unknown"),
            ]


def test_mps_daemon_in_a_container_is_ignored(tmp_path):
    daemon = named(tmp_path, "nvidia-cuda-mps-control")
    with opened(program=daemon, within=["unshare", "--pid", "--fork"]):
        assert find_holders(FOUR, dev=str(tmp_path / "dev"), run=never, kubelet_directory=str(tmp_path)) == ()


def test_mps_daemon_is_queried_at_its_own_directory(tmp_path):
    (tmp_path / "own").mkdir()
    directory = str(tmp_path / "pipes")
    asked = []

    def control(command, input, env):
        asked.append(env["CUDA_MPS_PIPE_DIRECTORY"])
        return subprocess.CompletedProcess(command, 0, "", "")

    mount = 'mkdir %s && mount --bind %s %s && exec "$@"' % (directory, tmp_path / "own", directory)
    within = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    daemon = named(tmp_path, "nvidia-cuda-mps-control")
    with opened(program=daemon, within=within, CUDA_MPS_PIPE_DIRECTORY=directory) as running:
        find_holders(FOUR, dev=str(tmp_path / "dev"), run=control, kubelet_directory=str(tmp_path))
        assert set(asked) == {"/proc/%d/root%s" % (running.pid, directory)}
