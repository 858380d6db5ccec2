# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run program.py on one GPU, alone and as a vGPU tenant, and measure.

Nothing on the host is changed: the quotas, the limiter and the MPS daemon's directories are in a folder of the caller.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Sequence

import frameworks
import pynvml
from card_program import HERE, KINDS, Card, NotMeasuredError, program, tried
from exporter import Series, running
from tenants import QUOTA_BYTES, Tenant, build, container_options, environment

from ansible_collections.openfleet.gpu.plugins.module_utils.cdi import nvidia_ctk
from ansible_collections.openfleet.gpu.plugins.module_utils.cli.holders import look
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders, gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.bounded_session import BoundedSession

SHARES_PERCENT = (20, 50, 80)
#: Number of kernels of 1 ms each, for the runs alone and with a share.
KERNELS = 1500
LAUNCHES = 20_000
#: Duration of the load before the program reads the GPU, because NVML's utilization covers the last second. Time limit
#: until the GPU is idle.
LOADED_SECONDS, REST_SECONDS = 4.0, 60.0
#: Limit on allocations, so that a program cannot fill the GPU if the limiter is broken.
MOST_BYTES = 2 * QUOTA_BYTES
#: CUDA_ERROR_OUT_OF_MEMORY
OUT_OF_MEMORY = 2
#: Folders of CDI specifications.
CDI_FOLDERS = (Path("/", nvidia_ctk.LASTING), Path("/", nvidia_ctk.PASSING))
ENGINES = ("podman", "docker")
#: Total duration of a measurement's kernels.
KERNEL_SECONDS = KERNELS * 0.001


def measure(card: Card) -> dict[str, Any]:
    """Return the measurements by area.

    If a measurement is missing, the value is the reason.
    """
    found: dict[str, Any] = {"load": tried(lambda: load(card))}
    library = tried(lambda: build(card))
    if isinstance(library, str):
        found["limiter"] = found["frameworks"] = library
    else:
        found["limiter"] = tried(lambda: limiter(card, library))
        found["frameworks"] = tried(lambda: frameworks.measure(card, library))
    return {**found, "mps": tried(lambda: mps(card))}


# --- the card under load -------------------------------------------------------------------------------------------------


def load(card: Card) -> dict[str, Any]:
    """Return readings of NVML and the kernel before, during and after a load."""
    card.tell("loading GPU %d for some seconds" % card.index)
    with running(card.folder / "exporter") as series:
        return _loaded(card, series)


def _loaded(card: Card, series: Callable[[str], Series]) -> dict[str, Any]:
    uuid = _uuid(card.index)
    found: dict[str, Any] = {"rest": _state(card.index), "series": {"rest": series(uuid)}}
    with program(card, "busy") as busy:
        busy.line()
        found["pid"] = busy.process.pid
        time.sleep(LOADED_SECONDS)
        found["busy"] = _state(card.index)
        found["series"]["busy"] = series(uuid)
        found["nodes"] = _gpu_nodes(busy.process.pid)
        found["holders"] = tried(lambda: holders_of(card.index, busy.process.pid))
        busy.end()
    limit = time.monotonic() + REST_SECONDS
    while (after := _state(card.index))["utilization"] not in (0, None) and time.monotonic() < limit:
        time.sleep(1)
    found["after"] = after
    found["series"]["after"] = series(uuid)
    return found


def _uuid(index: int) -> str:
    pynvml.nvmlInit()
    try:
        return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
    finally:
        pynvml.nvmlShutdown()


def _state(index: int) -> dict[str, Any]:
    """Return values from NVML. Unreadable values are None."""
    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        return {
            "utilization": _asked(lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
            "power_watts": _asked(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
            "sm_mhz": _asked(lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
            "processes": {
                one.pid: one.usedGpuMemory
                for one in _asked(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)) or ()
            },
            "mps_processes": _asked(lambda: [one.pid for one in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)]),
        }
    finally:
        pynvml.nvmlShutdown()


def holders_of(index: int, pid: int) -> dict[str, Any]:
    """Return the kinds and the memory that gpu_info reports for a process on a GPU.

    If run as root, also return the kinds that `gpu-layout holders` reports.
    """
    with BoundedSession() as session:
        host = session.observe()
    found = [gpu for gpu in gpus(host, find_holders(host)) if gpu["index"] == index]
    return {
        "kinds": _kinds(found, pid),
        "bytes": [one["gpu_memory_bytes"] for gpu in found for one in gpu["processes"] if one["pid"] == pid],
        "command": _kinds([gpu for gpu in look()["gpus"] if gpu["index"] == index], pid) if os.geteuid() == 0 else None,
    }


def _kinds(found: Sequence[dict[str, Any]], pid: int) -> list[str]:
    return [one["kind"] for gpu in found for one in gpu["holders"] if one["pid"] == pid]


def _asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _gpu_nodes(pid: int) -> list[str]:
    """Return the device nodes of GPUs that the process has open."""
    found = set()
    for link in Path("/proc/%d/fd" % pid).iterdir():
        try:
            name = str(link.readlink())
        except FileNotFoundError:
            continue
        if name.startswith("/dev/nvidia"):
            found.add(name)
    return sorted(found)


# --- the limiter ---------------------------------------------------------------------------------------------------------


def limiter(card: Card, library: Path) -> dict[str, Any]:
    """Measure programs as tenants: each kind of memory, launches and shares."""
    card.tell("the CUDA device is %s" % card.uuid)
    found: dict[str, Any] = {"quota": QUOTA_BYTES, "memory": {}, "shares": {}}
    alone = environment(card, library, Tenant("alone"))
    for kind in KINDS:
        card.tell("allocating %s memory under a quota" % kind)
        found["memory"][kind] = tried(lambda kind=kind: _memory(card, kind, alone))
    found["memory"]["container: linear"] = tried(lambda: _in_container(card, library))
    card.tell("the memory of a context and a module")
    found["module"] = tried(lambda: _module(card, alone))
    card.tell("two processes of a tenant")
    found["two_processes"] = tried(lambda: _two_processes(card, alone))
    card.tell("the cost of a launch")
    programs = {"bare": {}, "tenant": alone, "throttled": environment(card, library, Tenant("throttled", 50))}
    found["launch_seconds"] = tried(lambda: {name: _launch_seconds(card, where) for name, where in programs.items()})
    card.tell("kernels without the limiter")
    found["bare_seconds"] = tried(lambda: {"took": _kernel_seconds(card, {})})
    for percent in SHARES_PERCENT:
        card.tell("a share of %d percent" % percent)
        tenant = environment(card, library, Tenant("share-%d" % percent, percent))
        found["shares"][str(percent)] = tried(lambda tenant=tenant: {"took": _kernel_seconds(card, tenant)})
    card.tell("two tenants, 30 and 70 percent")
    found["two_tenants"] = tried(lambda: _two_tenants(card, library))
    return found


def _memory(card: Card, kind: str, tenant: dict[str, str]) -> dict[str, Any]:
    if kind in card.without:
        raise NotMeasuredError("--without %s was given" % kind)
    with program(card, "memory", kind, str(MOST_BYTES), environment=tenant) as one:
        said = one.line()
        used = _state(card.index)["processes"].get(one.process.pid)
        return {**said, "card": used, **one.end()}


def _module(card: Card, tenant: dict[str, str]) -> dict[str, int]:
    with program(card, "module", environment=tenant) as one:
        charged = one.line()["charged"]
        used = _state(card.index)["processes"].get(one.process.pid)
        if used is None:
            raise NotMeasuredError("NVML does not report the memory of the process")
        return {"charged": charged, "card": used}


def _in_container(card: Card, library: Path) -> dict[str, Any]:
    """Measure memory in a container with the mounts of a tenant's CDI specification."""
    engine = _engine(card)
    card.tell("allocating memory under a quota in a container of %s" % engine)
    options = container_options(card.folder / "container", card.uuid, library)
    name = "openfleet-check-gpu-%d" % os.getpid()
    run = [engine, "run", "--rm", "--interactive", "--pull=never", "--network=none", "--name", name, *options,
           "--volume", "%s:/program.py:ro" % (HERE / "program.py"), str(card.image), "python3", "/program.py"]  # fmt: skip
    try:
        with program(card, "memory", "linear", str(MOST_BYTES), run=run) as one:
            held = one.line()
            # NVML lists the process with its host PID, which the process in the container does not know.
            return {**held, "card": None, **one.end()}
    finally:
        subprocess.run([engine, "rm", "--force", name], capture_output=True, check=False, timeout=card.timeout_seconds)


def _engine(card: Card) -> str:
    """Return the container engine that has the image.

    Raises NotMeasuredError if the image, an engine or a CDI specification is missing.
    """
    if card.image is None:
        raise NotMeasuredError("no image: set --image to one with python3")
    engines = [name for name in ENGINES if shutil.which(name)]
    if not engines:
        raise NotMeasuredError("neither podman nor docker is installed")
    if not any(nvidia_ctk.find_specs(folder) for folder in CDI_FOLDERS):
        raise NotMeasuredError("no CDI specification of nvidia.com/gpu: create it with nvidia-ctk cdi generate")
    for engine in engines:
        ask = [engine, "image", "inspect", card.image]
        if subprocess.run(ask, capture_output=True, check=False, timeout=card.timeout_seconds).returncode == 0:
            return engine
    raise NotMeasuredError("%s has no image %s" % (" and ".join(engines), card.image))


def _two_processes(card: Card, tenant: dict[str, str]) -> dict[str, Any]:
    """Return the memory of two processes of a tenant.

    The limiter refuses either memory or a context to the second process.
    """
    with program(card, "memory", "linear", str(MOST_BYTES), environment=tenant) as first:
        said = [first.line()]
        with program(card, "memory", "linear", str(MOST_BYTES), environment=tenant) as second:
            try:
                said.append(second.line())
            except NotMeasuredError as error:
                if "answered %d" % OUT_OF_MEMORY not in str(error):
                    raise
                said.append({"held": 0, "code": OUT_OF_MEMORY})
            else:
                second.end()
        first.end()
    return {"held": sum(one["held"] for one in said), "codes": [one["code"] for one in said]}


def _launch_seconds(card: Card, environment: dict[str, str]) -> float:
    with program(card, "launches", str(LAUNCHES), environment=environment) as one:
        return one.line()["launch_seconds"]


def _kernel_seconds(card: Card, environment: dict[str, str]) -> float:
    with program(card, "kernels", str(KERNELS), environment=environment) as one:
        one.line()
        return one.end()["took"]


def _two_tenants(card: Card, library: Path) -> dict[str, Any]:
    """Return the number of kernels that each of two tenants runs in the same time."""
    with ExitStack() as both:
        made = []
        for seat, percent in enumerate((30, 70)):
            where = environment(card, library, Tenant("tenant-%d" % percent, percent, seat, "two"))
            made.append(both.enter_context(program(card, "kernels", str(10 * KERNELS), "5", environment=where)))
        for one in made:
            one.line()
        for one in made:
            one.go()
        return {"kernels": [one.line()["kernels"] for one in made]}


# --- MPS -----------------------------------------------------------------------------------------------------------------


def mps(card: Card) -> dict[str, Any]:
    """Run a private MPS daemon with a client, and return how NVML lists them.

    The client has a limit on threads. NVML must distinguish the client from a program without MPS.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise NotMeasuredError("nvidia-cuda-mps-control is not installed")
    card.tell("a private MPS daemon")
    folder = card.folder / "mps"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid}
    for variable, name in (("CUDA_MPS_PIPE_DIRECTORY", "pipe"), ("CUDA_MPS_LOG_DIRECTORY", "log")):
        (folder / name).mkdir(parents=True)
        environment[variable] = str(folder / name)

    def ask(command: str) -> str:
        done = subprocess.run([control], input=command + "\n", env=environment, capture_output=True, text=True,
                              check=False, timeout=card.timeout_seconds)  # fmt: skip
        return done.stdout.strip()

    subprocess.run([control, "-d"], env=environment, check=True, capture_output=True, timeout=card.timeout_seconds)
    client = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    direct = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "no daemon")}
    try:
        with program(card, "busy", environment=client) as one, program(card, "busy", environment=direct) as other:
            one.line()
            other.line()
            servers = ask("get_server_list").split()
            clients = [pid for server in servers for pid in ask("get_client_list %s" % server).split()]
            state = _state(card.index)
            return {
                "pid": one.process.pid,
                "servers": servers,
                "clients": clients,
                "direct": other.process.pid,
                "nvml": {"compute": sorted(state["processes"]), "mps": state["mps_processes"]},
            }
    finally:
        ask("quit -t 10")
