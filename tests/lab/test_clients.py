# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run third-party clients on the simulated NVML.

The clients are nvidia-smi, nvidia-ml-py, gpustat, nvitop and nvtop. They find the simulated library as they would find
the real one. The tests use separate GPUs in a separate state file (GPUSIM_STATE), so that the lab host's layout does
not change.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import find_model, load_models
from tests.lab.lab_fixtures import BOOT_SECONDS, no_restart
from tests.thorough import sample

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOST = "l40s"

GPUS = [{"model": "H100-80GB", "count": 2}, {"model": "A100-80GB"}, {"model": "L40S-48GB"}]
NAMES = ["NVIDIA H100 80GB HBM3"] * 2 + ["NVIDIA A100-SXM4-80GB", "NVIDIA L40S"]
MEMORY_MIB = [81559, 81559, 81920, 46068]
LAST_PROFILE_OF_NVIDIA_SMI_535 = 9
ENVIRONMENT = "GPUSIM_STATE=/var/tmp/openfleet-clients/state"


def make_wheels() -> Path:
    """Return wheels of the Python clients and their dependencies.

    The hosts have no network, so the wheels are downloaded once and kept.
    """
    requirements = HERE / "clients.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    directory = REPOSITORY / ".cache" / f"client-wheels-{digest}"
    if not (directory / "complete").exists():
        command = [sys.executable, "-m", "pip", "wheel", "-q", "-r", str(requirements), "-w", str(directory)]
        subprocess.run(command, check=True)
        (directory / "complete").touch()
    return directory


@pytest.fixture(scope="session")
def client_host(lab_host):
    """Return a lab host that has a folder for these tests."""
    host = lab_host(HOST)
    if not host.exists("gpusim"):
        pytest.fail(f"lab host {HOST} has no simulated GPUs: run site.yml on it (make demo)")
    host.check_output("rm -rf /var/tmp/openfleet-clients && mkdir -p /var/tmp/openfleet-clients")
    yield host
    host.run("rm -rf /var/tmp/openfleet-clients")


@pytest.fixture(scope="session")
def python_clients(client_host):
    """Install the Python clients in /var/tmp/openfleet-clients/venv."""
    wheels = make_wheels()
    container = client_host.backend.name
    subprocess.run(["podman", "cp", str(wheels), f"{container}:/var/tmp/openfleet-clients/wheels"], check=True)
    client_host.check_output("python3 -m venv /var/tmp/openfleet-clients/venv")
    client_host.check_output(
        "/var/tmp/openfleet-clients/venv/bin/pip install -q --no-index "
        "--find-links /var/tmp/openfleet-clients/wheels gpustat nvitop"
    )


@pytest.fixture
def client(client_host):
    """Return a function that runs a command on the host, and returns its output.

    The GPUs are created again for each test.
    """

    def run(command: str, status: int = 0) -> str:
        done = client_host.run(f"export {ENVIRONMENT} PATH=$PATH:/var/tmp/openfleet-clients/venv/bin; {command}")
        assert done.rc == status, f"{command}: status {done.rc}\n{done.stdout}{done.stderr}"
        return done.stdout

    # First create different GPUs, to discard the state of an earlier test.
    lay_out(run, GPUS[:1])
    lay_out(run, GPUS)
    return run


def lay_out(client, gpus: list) -> None:
    configuration = json.dumps({"host": "clients", "driver_version": "580.105.08", "gpus": gpus})
    client(f"echo '{configuration}' | gpusim init --config -")


def state(client) -> dict:
    return json.loads(client("gpusim show --json"))


def uuids(client) -> list:
    return [gpu["uuid"] for gpu in state(client)["gpus"]]


def start_process(client, gpu: int) -> None:
    """Start a process on a GPU with 2 GiB of GPU memory.

    The process does not inherit testinfra's output, because testinfra would wait until the process closes it.
    """
    client(
        f"gpusim run --gpu {gpu} --memory 2GiB -- sleep 300 > /dev/null 2>&1 & echo $! > /var/tmp/openfleet-clients/pid"
    )
    client(f"timeout 300 sh -c 'until gpusim show | grep -q \"compute on GPU {gpu}\"; do sleep 0.1; done'")


def stop_process(client) -> None:
    client("pid=$(cat /var/tmp/openfleet-clients/pid); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done")


# --- nvidia-smi ---------------------------------------------------------------------------------


def test_nvidia_smi_lists_the_gpus(client):
    listed = re.findall(r"^GPU (\d): (.+) \(UUID: (GPU-[0-9a-f-]{36})\)$", client("nvidia-smi -L"), re.MULTILINE)
    assert listed == [(str(i), name, uuid) for i, (name, uuid) in enumerate(zip(NAMES, uuids(client)))]


def test_nvidia_smi_prints_its_table(client):
    client("gpusim load 0 --pattern constant --utilization 80 --memory 4GiB --power 300")
    table = client("nvidia-smi")
    assert "Driver Version: 580.105.08" in table and "CUDA Version: 13.0" in table
    memory = re.findall(r"(\d+)MiB / +(\d+)MiB", table)
    assert [int(total) for _, total in memory] == MEMORY_MIB
    assert int(memory[0][0]) >= 4096 and re.search(r"300W / +700W", table) and "80%" in table
    # These are the last columns of the GPUs' rows. Three of the GPUs support MIG.
    assert re.findall(r"(Disabled|N/A) \|$", table, re.MULTILINE)[-4:] == ["Disabled"] * 3 + ["N/A"]


def test_nvidia_smi_reports_what_was_configured(client):
    log = ElementTree.fromstring(client("nvidia-smi -q -x"))
    assert log.findtext("driver_version") == "580.105.08" and log.findtext("attached_gpus") == "4"
    gpus = log.findall("gpu")
    assert [gpu.findtext("product_name") for gpu in gpus] == NAMES
    assert [gpu.findtext("uuid") for gpu in gpus] == uuids(client)
    assert [gpu.findtext("fb_memory_usage/total") for gpu in gpus] == [f"{size} MiB" for size in MEMORY_MIB]
    assert [gpu.findtext("mig_mode/current_mig") for gpu in gpus] == ["Disabled"] * 3 + ["N/A"]
    assert [gpu.findtext("pci/pci_device_id") for gpu in gpus] == ["233010DE", "233010DE", "20B210DE", "26B910DE"]
    assert [gpu.findtext("product_architecture") for gpu in gpus] == ["Hopper", "Hopper", "Ampere", "Ada Lovelace"]
    assert [gpu.get("id") for gpu in gpus] == [gpu["pci_address"] for gpu in state(client)["gpus"]]
    assert gpus[0].findtext("max_clocks/graphics_clock") == "1980 MHz"


def test_nvidia_smi_shows_the_speed_of_links(client):
    told = client("timeout 60 nvidia-smi nvlink -s")
    assert "Unable" not in told.split("NVIDIA A100")[0]
    by_gpu = re.split(r"^GPU \d: .*$", told, flags=re.MULTILINE)[1:]
    assert [re.findall(r"Link (\d+): (.+)", gpu) for gpu in by_gpu[:2]] == [
        [(str(link), "26.562 GB/s") for link in range(18)]
    ] * 2


def test_nvidia_smi_draws_the_topology(client):
    rows = [line.split("\t") for line in client("nvidia-smi topo -m").splitlines() if line.startswith("GPU")]
    # The GPUs are divided between two sockets. Only the H100s are connected to each other.
    assert [[cell.strip() for cell in row[1:5]] for row in rows] == [
        ["X", "NV18", "SYS", "SYS"],
        ["NV18", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NODE"],
        ["SYS", "SYS", "NODE", "X"],
    ]
    assert [row[6].strip() for row in rows] == ["0", "0", "1", "1"], "the NUMA affinity"
    assert all(row[5].strip() for row in rows), "the CPU affinity"
    linked = re.findall(r"^ GPU\d\t(.+?)\t?$", client("nvidia-smi topo -p2p n"), re.MULTILINE)
    assert [row.split() for row in linked] == [
        ["X", "OK", "NS", "NS"], ["OK", "X", "NS", "NS"], ["NS", "NS", "X", "NS"], ["NS", "NS", "NS", "X"],
    ]  # fmt: skip


def test_nvidia_smi_reads_limits_clocks_and_states_of_the_models(client):
    gpus = ElementTree.fromstring(client("nvidia-smi -q -x")).findall("gpu")
    assert [gpu.findtext("performance_state") for gpu in gpus] == ["P0", "P0", "P0", "P8"]
    # nvidia-smi -q -x shows distances from the temperature limit for an H100, and temperatures for the A100.
    h100, a100 = gpus[0], gpus[2]
    names = ("gpu_temp_tlimit", "gpu_temp_max_tlimit_threshold", "gpu_temp_slow_tlimit_threshold", "memory_temp")
    assert [h100.findtext(f"temperature/{name}") for name in names] == ["58 C", "-8 C", "-2 C", "37 C"]
    assert a100.findtext("temperature/gpu_temp_tlimit") == "N/A"
    assert h100.findtext("inforom_version/img_version") == "G520.0200.00.05"
    assert h100.findtext("gsp_firmware_version") == "580.105.08"
    assert [gpu.findtext("platformInfo/module_id") or gpu.findtext("gpu_module_id") for gpu in gpus[:2]] == ["1", "2"]
    query = "nvidia-smi --format=csv,noheader -i 0 --query-gpu=enforced.power.limit,clocks.gr,clocks.mem"
    assert client(query).strip() == "700.00 W, 345 MHz, 2619 MHz"
    client("nvidia-smi -i 0 -pl 500 && nvidia-smi -i 0 -lgc 900,1200 && nvidia-smi -i 0 -lmc 1593")
    assert client(query).strip() == "500.00 W, 900 MHz, 1593 MHz"
    client("nvidia-smi -i 0 -rgc && nvidia-smi -i 0 -rmc")
    assert client(query).strip() == "500.00 W, 345 MHz, 2619 MHz"


def test_nvidia_smi_lists_profiles_and_placements(client):
    client("nvidia-smi -i 0 -mig 1")
    row = r"^\|\s+0\s+MIG (\S+)\s+(\d+)\s+(\d)/(\d)\s+([\d.]+)"
    profiles = re.findall(row, client("nvidia-smi mig -i 0 -lgip"), re.MULTILINE)
    assert profiles == [
        ("1g.10gb", "19", "7", "7", "9.75"),
        ("1g.10gb+me", "20", "1", "1", "9.75"),
        ("1g.20gb", "15", "4", "4", "19.62"),
        ("2g.20gb", "14", "3", "3", "19.62"),
        ("3g.40gb", "9", "2", "2", "39.50"),
        ("4g.40gb", "5", "1", "1", "39.50"),
        ("7g.80gb", "0", "1", "1", "79.25"),
    ]
    placements = re.findall(
        r"Profile ID\s+(\d+) Placements?\s*:\s*\{([\d,]+)\}:(\d)", client("nvidia-smi mig -i 0 -lgipp")
    )
    assert placements == [
        ("19", "0,1,2,3,4,5,6", "1"),
        ("20", "0,1,2,3,4,5,6", "1"),
        ("15", "0,2,4,6", "2"),
        ("14", "0,2,4", "2"),
        ("9", "0,4", "4"),
        ("5", "0", "4"),
        ("0", "0", "8"),
    ]


@pytest.mark.parametrize("key", sample([key for key, model in load_models().items() if model.mig_capable], 4))
def test_nvidia_smi_lists_the_profiles_of_every_model(client, key):
    lay_out(client, [{"model": key}])
    client("nvidia-smi -mig 1")
    row = r"^\|\s+0\s+MIG (\S+)\s+(\d+)\s+\d+/(\d+)\s+([\d.]+)\s+No\s+(\d+)\s+(\d+)\s+(\d+)"
    model = find_model(key)
    # This version of nvidia-smi does not know profiles that are newer than its last enum value.
    known = [profile for profile in model.profiles if profile.nvml_profile <= LAST_PROFILE_OF_NVIDIA_SMI_535]
    assert re.findall(row, client("nvidia-smi mig -lgip"), re.MULTILINE) == [
        (
            profile.name,
            str(profile.profile_id),
            str(profile.max_instances),
            f"{model.profile_memory_mib(profile) / 1024:.2f}",
            str(profile.multiprocessors),
            str(profile.decoders),
            str(profile.encoders),
        )
        for profile in known
    ]


def test_nvidia_smi_partitions_a_gpu_and_clears_it(client):
    client("nvidia-smi -i 0 -mig 1")
    client("nvidia-smi mig -i 0 -cgi 9,19,19,14 -C")
    instances = re.findall(
        r"^\|\s+0\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)", client("nvidia-smi mig -i 0 -lgi"), re.MULTILINE
    )
    assert sorted(name for name, *_ in instances) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    taken = sorted(unit for *_, start, size in instances for unit in range(int(start), int(start) + int(size)))
    assert len(taken) == len(set(taken)) == 8
    parts = re.findall(r"^\|\s+0\s+(\d+)\s+MIG (\S+)\s+(\d+)", client("nvidia-smi mig -i 0 -lci"), re.MULTILINE)
    assert sorted(gpu_instance for gpu_instance, *_ in parts) == sorted(number for _, _, number, *_ in instances)
    row = r"^  MIG (\S+)\s+Device\s+(\d): \(UUID: (MIG-[0-9a-f-]{36})\)$"
    devices = re.findall(row, client("nvidia-smi -L"), re.MULTILINE)
    assert sorted(name for name, *_ in devices) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    assert len({uuid for *_, uuid in devices}) == 4
    # A GPU instance cannot be destroyed while it has a compute instance.
    assert "In use" in client("nvidia-smi mig -i 0 -dgi", status=19)
    client("nvidia-smi mig -i 0 -dci")
    client("nvidia-smi mig -i 0 -dgi")
    assert "MIG" not in client("nvidia-smi -L")
    client("nvidia-smi -i 0 -mig 0")
    assert [gpu["mig"] for gpu in state(client)["gpus"]] == [{"current": 0, "pending": 0}] * 4


def test_nvidia_smi_fails_for_a_bad_creation_order(client):
    client("nvidia-smi -i 0,1 -mig 1")
    assert "Insufficient Resources" in client("nvidia-smi mig -i 0 -cgi 19,19,14,9 -C", status=23)
    client("nvidia-smi mig -i 1 -cgi 9,19,19,14 -C")


def test_nvidia_smi_reports_gpus_without_mig(client):
    # The exit status is 0 despite the failure, so only the message tells.
    assert "Unable to enable MIG Mode for GPU 00000000:44:00.0: Not Supported" in client("nvidia-smi -i 3 -mig 1")


def test_nvidia_smi_leaves_the_mode_of_an_ampere_gpu_in_use_pending(client):
    start_process(client, 2)
    try:
        client("nvidia-smi -i 2 -mig 1")
        log = ElementTree.fromstring(client("nvidia-smi -q -x"))
        modes = log.findall("gpu")[2].find("mig_mode")
        assert [modes.findtext("current_mig"), modes.findtext("pending_mig")] == ["Disabled", "Enabled"]
    finally:
        stop_process(client)
    client("gpusim reset 2")
    assert state(client)["gpus"][2]["mig"] == {"current": 1, "pending": 1}


def time_slices(client) -> list:
    """Return the time slice of every GPU as nvidia-smi shows it."""
    return re.findall(r"^\|\s+\d\s+Timeslice\s+(\w+)", client("nvidia-smi compute-policy -l"), re.MULTILINE)


def test_nvidia_smi_sets_the_time_slice_and_reads_it_back(client):
    assert time_slices(client) == ["Default"] * 4
    for number, name in ((1, "Short"), (2, "Medium"), (3, "Long")):
        client(f"nvidia-smi compute-policy -i 1 --set-timeslice={number}")
        assert time_slices(client) == ["Default", name, "Default", "Default"]
    # nvidia-smi reports success for an invalid value, and then shows it as Unknown.
    assert "Successfully" in client("nvidia-smi compute-policy -i 1 --set-timeslice=9")
    assert time_slices(client)[1] == "Unknown"
    client("nvidia-smi compute-policy -i 1 --set-timeslice=0 && nvidia-smi compute-policy -i 0 --set-timeslice=3")
    client("gpusim reboot")
    assert time_slices(client) == ["Default"] * 4


def test_nvidia_smi_reports_gpus_without_time_slice(client):
    client("gpusim set 3 timeslicing off")
    assert "Not Supported" in client("nvidia-smi compute-policy -i 3 --set-timeslice=1", status=3)
    assert "Not Supported" in client("nvidia-smi compute-policy -i 3 -l", status=3)
    client("nvidia-smi compute-policy -i 2 --set-timeslice=1")


def test_only_root_sets_the_time_slice(client):
    client("chmod 666 /var/tmp/openfleet-clients/state*")
    as_nobody = "setpriv --reuid=65534 --clear-groups nvidia-smi compute-policy -i 0"
    assert "Insufficient Permissions" in client(f"{as_nobody} --set-timeslice=1", status=4)
    assert "Default" in client(f"{as_nobody} -l")


def test_nvidia_smi_lists_processes_by_gpu_instance_and_type(client):
    client("nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 9,14 -C")
    instance = int(re.search(r"^\|\s+0\s+(\d+)\s+MIG 2g", client("nvidia-smi mig -i 0 -lci"), re.MULTILINE).group(1))
    places = (f"--gpu 0 --gi {instance}", "--gpu 1", "--gpu 1 --type graphics", "--gpu 1 --type mps")
    for place in places:
        run = f"gpusim run {place} --memory 64MiB -- sleep 300 >/dev/null 2>&1"
        client(f"{run} & echo $! >> /var/tmp/openfleet-clients/pids")
    try:
        client("timeout 300 sh -c 'until [ $(gpusim show | grep -c \" on GPU .*64 MiB\") = 4 ]; do sleep 0.1; done'")
        row = r"^\|\s+(\d)\s+(\d+|N/A)\s+(\d+|N/A)\s+\d+\s+([CGM+]+)\s+(\S+)\s+64MiB"
        listed = re.findall(row, client("nvidia-smi"), re.MULTILINE)
        sleep = client("readlink -f $(command -v sleep)").strip()
        assert sorted(listed) == [
            ("0", str(instance), "0", "C", sleep),
            ("1", "N/A", "N/A", "C", sleep),
            ("1", "N/A", "N/A", "G", sleep),
            ("1", "N/A", "N/A", "M+C", sleep),
        ]
    finally:
        client("kill $(cat /var/tmp/openfleet-clients/pids); rm /var/tmp/openfleet-clients/pids")
        client("timeout 300 sh -c 'while gpusim show | grep -q \" on GPU .*64 MiB\"; do sleep 0.1; done'")


# --- Python clients (tests/clients runs two releases of nvidia-ml-py on the same library, also in `make test`) ------


@pytest.mark.thorough
@pytest.mark.usefixtures("python_clients")
def test_nvidia_ml_py_walks_the_mig_devices(client):
    client("nvidia-smi -i 1 -mig 1 && nvidia-smi mig -i 1 -cgi 9,14 -C")
    program = """
import json, pynvml as N
N.nvmlInit()
found = []
for i in range(N.nvmlDeviceGetCount()):
    gpu = N.nvmlDeviceGetHandleByIndex(i)
    devices = []
    try:
        room = N.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except N.NVMLError_NotSupported:
        room = 0
    for j in range(room):
        try:
            device = N.nvmlDeviceGetMigDeviceHandleByIndex(gpu, j)
        except N.NVMLError_NotFound:
            continue
        attributes = N.nvmlDeviceGetAttributes(device)
        devices.append([attributes.gpuInstanceSliceCount, attributes.memorySizeMB, attributes.multiprocessorCount])
    found.append([N.nvmlDeviceGetUUID(gpu), sorted(devices)])
print(json.dumps(found))
"""
    found = json.loads(client(f"/var/tmp/openfleet-clients/venv/bin/python - <<'END'\n{program}\nEND"))
    assert [uuid for uuid, _ in found] == uuids(client)
    assert [devices for _, devices in found] == [[], [[2, 20096, 32], [3, 40448, 60]], [], []]


@pytest.mark.thorough
@pytest.mark.usefixtures("python_clients")
def test_gpustat_agrees(client):
    client("gpusim load 2 --pattern constant --utilization 42 --memory 8GiB --power 250")
    start_process(client, 3)
    try:
        found = json.loads(client("gpustat --json"))["gpus"]
        assert [gpu["name"] for gpu in found] == NAMES
        assert [gpu["uuid"] for gpu in found] == uuids(client)
        assert [gpu["memory.total"] for gpu in found] == MEMORY_MIB
        assert (found[2]["utilization.gpu"], round(found[2]["power.draw"])) == (42, 250)
        assert found[2]["memory.used"] >= 8192
        (process,) = found[3]["processes"]
        assert (process["command"], process["gpu_memory_usage"]) == ("sleep", 2048)
    finally:
        stop_process(client)
    assert json.loads(client("gpustat --json"))["gpus"][3]["processes"] == []


@pytest.mark.thorough
@pytest.mark.usefixtures("python_clients")
def test_nvitop_sees_gpus_and_mig_devices(client):
    client("nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 9 -C")
    shown = client("nvitop -1 --ascii --no-unicode 2>&1 || nvitop -1 --ascii")
    assert "580.105.08" in shown
    for part in ("H100", "A100", "L40S", "3g.40gb"):
        assert part in shown


def test_nvtop_draws_all_gpus(client):
    client("gpusim load 3 --pattern constant --utilization 33 --power 123")
    named = [(str(i), name) for i, name in enumerate(NAMES)]
    # nvtop prints only to a terminal, which script(1) provides. It does not end by itself, so the test reads its output
    # for a limited time.
    for seconds in (3, 15, 60):
        nvtop = f"stty cols 160 rows 60; timeout --foreground {seconds} nvtop || true"
        drawn = client(f"TERM=xterm script -qec '{nvtop}' /dev/null")
        text = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z0-9]|[=>])", "", drawn)
        names = sorted(set(re.findall(r"Device (\d) \[(.+?)\]", text)))
        loaded = re.search(r"POW +123 / 350 W", text) and "33%" in text
        if names == named and loaded:
            break
    assert names == named
    assert loaded


# --- a restart of the host ----------------------------------------------------------------------


def test_a_restart_of_the_host_is_a_reboot_of_its_gpus(client, client_host):
    client("nvidia-smi -i 0,2 -mig 1 && nvidia-smi mig -i 0 -cgi 9 -C && nvidia-smi -i 3 -c EXCLUSIVE_PROCESS")
    started = client_host.check_output('cut -d" " -f22 /proc/1/stat')
    time.sleep(1)  # the start time of PID 1 has whole => x
    client_host.run("systemctl reboot")
    deadline = time.monotonic() + BOOT_SECONDS
    while client_host.run('cut -d" " -f22 /proc/1/stat').stdout.strip() in ("", started):
        assert time.monotonic() < deadline, no_restart(client_host, BOOT_SECONDS)
        time.sleep(0.2)
    log = ElementTree.fromstring(client("nvidia-smi -q -x"))
    gpus = log.findall("gpu")
    assert "MIG" not in client("nvidia-smi -L")
    # Ampere GPUs keep their MIG mode.
    assert [gpu.findtext("mig_mode/current_mig") for gpu in gpus] == ["Disabled", "Disabled", "Enabled", "N/A"]
    assert gpus[3].findtext("compute_mode") == "Default"
