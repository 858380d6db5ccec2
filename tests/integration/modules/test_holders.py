# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test holders in gpu_info, with containers of the real podman."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Host
from tests.integration.patience import wait_until

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}]

#: An interpreter whose /dev has the nodes that a driver would create. Two processes run next to it: one has the first
#: GPU open, and one is in that GPU's instance and has the capability {minor}.
WITH_NODES = """#!/usr/bin/env -S unshare --mount sh
set -e
dev={folder}
mount -t tmpfs tmpfs "$dev"
mknod -m 666 "$dev/null" c 1 3
mknod -m 666 "$dev/urandom" c 1 9
mkdir "$dev/nvidia-caps"
touch "$dev/nvidia0" "$dev/nvidia1" "$dev/nvidia-caps/nvidia-cap{minor}"
mount --bind "$dev" /dev
sleep 600 3</dev/nvidia0 & whole=$!
sleep 601 3</dev/nvidia0 4</dev/nvidia-caps/nvidia-cap{minor} & inside=$!
trap 'kill $whole $inside' EXIT
for holder in $whole $inside; do until [ "$(cat /proc/$holder/comm)" = sleep ]; do sleep 0.05; done; done
{python} "$@"
"""


def can(*command: str) -> bool:
    """Return whether this user can run the command on this machine."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def instances(gpu) -> list[int]:
    """Return the ids of the 3g.40gb instance and the 2g.20gb instance."""
    found = {instance["profile"]: instance["id"] for instance in gpu["mig"]["instances"]}
    return [found["3g.40gb"], found["2g.20gb"]]


def test_gpu_info_lists_holders(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    host.module("mig", layout=MIG)
    gpu = host.module("gpu_info")["gpus"][0]
    assert gpu["holders"] == []
    big, small = instances(gpu)
    process = host.popen(["gpusim", "run", "--gpu", "0", "--gi", str(big), "--memory", "1GiB", "--", "sleep", "300"])
    try:
        while not (gpu := host.module("gpu_info")["gpus"][0])["holders"]:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    (holder,) = gpu["holders"]
    assert (holder["kind"], holder["gpu_instance_id"], holder["user"]) == ("process", big, "root")
    assert "sleep 300" in holder["command"]
    assert {i["id"]: len(i["holders"]) for i in gpu["mig"]["instances"]} == {big: 1, small: 0}
    assert (holder["listens"], holder["clients"]) == (None, None), "not requested"
    gpu = host.module("gpu_info", holders=False, sockets=True)["gpus"][0]
    assert gpu["holders"] is None
    assert [i["holders"] for i in gpu["mig"]["instances"]] == [None, None]


#: Listens on a socket and connects to it from a child process. Prints `ready` once the client is connected.
SERVE = """
import os, socket, time
one = socket.create_server(("127.0.0.1", 0))
address = one.getsockname()
if os.fork():
    kept = one.accept()
    print("ready", flush=True)
else:
    one.close()
    kept = socket.create_connection(address)
time.sleep(600)
"""


def test_gpu_info_lists_servers_on_request(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    command = ["gpusim", "run", "--gpu", "0", "--", sys.executable, "-c", SERVE]
    with host.popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            (holder,) = host.module("gpu_info", sockets=True)["gpus"][0]["holders"]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert holder["listens"] is True
    # Without a unit, the child counts as a separate holder. In a unit, parent and child are one holder.
    assert holder["clients"] == (0 if holder["unit_or_container"] else 1)


def test_open_node_is_a_holder_without_nvml_process(host, tmp_path):
    if not can("unshare", "--mount", "true"):
        pytest.skip("this container has no permission to mount")
    host.create([{"model": "H100-80GB", "count": 2}])
    host.module("mig", layout=MIG)
    big, small = instances(host.module("gpu_info")["gpus"][0])
    interpreter = host.bin / "python-with-nodes"
    interpreter.write_text(WITH_NODES.format(folder=tmp_path, python=host.python, minor=3 + 9 * big))
    interpreter.chmod(0o755)
    host.python = str(interpreter)
    try:
        first, second = host.module("gpu_info")["gpus"]
    finally:
        host.end_interpreter()
    assert first["processes"] == []
    handles = {h["command"]: (h["kind"], h["gpu_instance_id"]) for h in first["holders"] if h["kind"] != "unknown"}
    assert handles == {"sleep 600": ("device_handle", None), "sleep 601": ("device_handle", big)}
    in_the_way = {
        instance["id"]: {h["command"] for h in instance["holders"] if h["kind"] != "unknown"}
        for instance in first["mig"]["instances"]
    }
    assert in_the_way == {big: {"sleep 600", "sleep 601"}, small: {"sleep 600"}}
    assert [h for h in second["holders"] if h["kind"] != "unknown"] == []


@pytest.fixture
def container(tmp_path):
    """Return a function that starts a container and lists its GPU holders.

    The containers use the real podman, and this machine's own programs.
    """
    podman = next((p for p in (str(ROOT / ".lab/bin/podman"), shutil.which("podman")) if p and can(p, "info")), None)
    if os.geteuid() != 0 or podman is None:
        pytest.skip("needs podman, and root")
    root, name = tmp_path / "root", "openfleet-holders-%s" % uuid.uuid4().hex[:8]
    for folder in ("usr", "proc", "sys", "dev", "tmp", "etc", "run"):
        (root / folder).mkdir(parents=True)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / folder).symlink_to("usr/" + folder)

    def start(*options: str):
        command = [podman, "run", "--detach", "--rm", "--network", "none", "--name", name, "--volume", "/usr:/usr:ro"]
        # These labels let tests/leg find the container if the tests are killed.
        command += ["--label", "openfleet.checkout=%s" % ROOT]
        command += ["--label", "openfleet.leg=%s" % os.environ.get("OPENFLEET_LEG", "")]
        started = subprocess.run([*command, *options, "--rootfs", str(root), "sleep", "300"], capture_output=True)
        assert started.returncode == 0, started.stderr
        pid = subprocess.check_output([podman, "inspect", "--format", "{{.State.Pid}}", name], text=True).strip()
        # Until the container runtime has started the container's program, the process has the runtime's name.
        wait_until(lambda: Path("/proc", pid, "comm").read_text() == "sleep\n", "the container's program")
        gpus = tuple(Gpu(i, "GPU-%d" % i, "NVIDIA H100", "0000:%02x:00.0" % (0x3B + i), 80 << 30) for i in range(2))
        found = find_holders(Host("580.65.06", "13.580.65.06", "13.0", True, gpus))
        subprocess.run([podman, "rm", "--force", "--time", "0", name], capture_output=True, check=False)
        return name, [h for h in found if h.kind == "container" and name in h.who]

    yield start
    subprocess.run([podman, "rm", "--force", "--ignore", "--time", "0", name], capture_output=True, check=False)


def test_container_holds_its_unopened_gpu(container):
    name, (holder,) = container("--device", "/dev/null:/dev/nvidia1")
    assert (holder.gpu_uuid, holder.gpu_instance_id, holder.command) == ("GPU-1", None, "sleep 300")
    assert holder.unit_or_container == "podman container " + name


def test_container_in_an_instance_holds_the_instance(container):
    nodes = ("nvidia0", "nvidia-caps/nvidia-cap39", "nvidia-caps/nvidia-cap40")
    _name, (holder,) = container(*(o for node in nodes for o in ("--device", "/dev/null:/dev/" + node)))
    assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-0", 4)


def test_container_without_a_gpu_holds_none(container):
    assert container("--device", "/dev/null:/dev/something")[1] == []


def test_privileged_container_holds_only_a_gpu_that_it_was_given(container, tmp_path):
    (tmp_path / "nvidia0").touch()
    node = ("--privileged", "--volume", "%s:/dev/nvidia0" % (tmp_path / "nvidia0"))
    assert container(*node)[1] == []
    driver = ("--volume", "%s:/run/libcuda.so.1" % (tmp_path / "nvidia0"))
    assert [holder.gpu_uuid for holder in container(*node, *driver)[1]] == ["GPU-0"]
