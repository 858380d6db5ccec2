# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test containers' GPUs with Debian's Podman and the role's specification."""

from __future__ import annotations

import re
import time

import pytest
from role_runs import Ask, run_roles

SPECIFICATION = "/var/run/cdi/nvidia.yaml"
IMAGE = "localhost/openfleet-test"
#: A command that builds the image with the libraries that nvidia-smi needs. The image has no NVIDIA files, because the
#: CDI devices provide them.
MAKE_IMAGE = (
    "tar -chf /tmp/image.tar -C / "
    "$(ldd $(readlink -f /usr/bin/nvidia-smi) | grep -o '/lib[^ ]*' | grep -v libnvidia | sed 's,^/,,') && "
    "tar -rf /tmp/image.tar -C / etc/debian_version && chmod 644 /tmp/image.tar"
)


@pytest.fixture(scope="module")
def image(boxes):
    boxes.check_output(MAKE_IMAGE)
    boxes.check_output(f"podman import --quiet /tmp/image.tar {IMAGE}")
    yield IMAGE
    boxes.run(f"podman image rm --force {IMAGE}")


@pytest.fixture(scope="module")
def alice(boxes, image):
    """Return a function that runs commands as alice, who has her own containers."""
    boxes.check_output("id alice || useradd --create-home alice")
    boxes.check_output("install -d -o alice -g alice /home/alice/.config /home/alice/.config/containers")
    boxes.check_output("printf '[storage]\\ndriver = \"vfs\"\\n' >/home/alice/.config/containers/storage.conf")
    boxes.check_output(f"su - alice -c 'podman import --quiet /tmp/image.tar {image}'")
    yield lambda command: boxes.run(f"su - alice -c '{command}'")
    boxes.run("su - alice -c 'podman system reset --force'; userdel --remove --force alice")


def gpus(text: str) -> list[str]:
    return re.findall(r"UUID: (GPU-[^)]+)\)", text)


def names(specification: str) -> list[str]:
    return re.findall(r'- name: "?([^"\s]+)', specification)


def listed(host) -> list[str]:
    return names(host.check_output(f"cat {SPECIFICATION}"))


def test_specification_lists_the_gpus_of_nvml(boxes):
    uuids = gpus(boxes.check_output("nvidia-smi -L"))
    assert len(uuids) == 2
    assert sorted(listed(boxes)) == sorted(["0", "1", *uuids, "all"])
    assert boxes.file(SPECIFICATION).mode & 0o444 == 0o444


@pytest.mark.parametrize(("device", "nodes"), [("0", ["nvidia0"]), ("1", ["nvidia1"]), ("all", ["nvidia0", "nvidia1"])])
def test_a_container_has_its_device_and_nvml(boxes, image, device, nodes):
    start = (
        f"podman run --detach --network=none --device nvidia.com/gpu={device} {image} nvidia-smi --list-gpus --loop=60"
    )
    container = boxes.check_output(
        f"podman create --network=none --device nvidia.com/gpu={device} {image} nvidia-smi -l 60"
    )
    try:
        boxes.check_output(f"podman start {container}")
        pid = boxes.check_output(f"podman inspect --format '{{{{.State.Pid}}}}' {container}")
        there = boxes.check_output(f"ls /proc/{pid}/root/dev").split()
        assert [name for name in there if name.startswith("nvidia")] == [*nodes, "nvidiactl"], start
    finally:
        boxes.run(f"podman rm --force --time 0 {container}")
    said = boxes.check_output(f"podman run --rm --network=none --device nvidia.com/gpu={device} {image} nvidia-smi -L")
    assert gpus(said) == gpus(boxes.check_output("nvidia-smi -L"))


def test_container_without_device_has_no_gpu(boxes, image):
    """Check as a control that the image has neither the program nor the nodes."""
    assert boxes.run(f"podman run --rm --network=none {image} nvidia-smi -L").rc != 0


def test_rootless_user_gives_devices_to_containers(boxes, image, alice):
    done = alice(f"podman run --rm --network=none --device nvidia.com/gpu=0 {image} nvidia-smi -L")
    assert done.rc == 0, done.stderr
    assert gpus(done.stdout) == gpus(boxes.check_output("nvidia-smi -L"))


def test_rootless_podman_reads_the_specification_and_smoke_test_reports_the_container(boxes, alice, image):
    boxes.check_output(f"chmod 600 {SPECIFICATION}")
    command = f"podman run --rm --network=none --device nvidia.com/gpu=0 {image} nvidia-smi -L"
    assert alice(command).rc != 0
    published, right, hidden = run_roles(
        "boxes",
        Ask(),
        Ask(then="podman images --all"),
        Ask(first="mv /dev/nvidia1 /dev/hidden", then="mv /dev/hidden /dev/nvidia1", fails=True),
    )
    assert published.steps == [f"make {SPECIFICATION} readable for all users"]
    assert alice(command).rc == 0
    assert (right.steps, right.result["smoke_test"]) == ([], "a container of podman sees 2 devices, the host's own")
    assert "smoke" not in right.seen
    assert hidden.failed.startswith("smoke test: a container with nvidia.com/gpu=all does not start")
    assert "/dev/nvidia1" in hidden.failed


def test_new_mig_devices_are_listed_and_usable(boxes, image):
    boxes.check_output("nvidia-smi -i 1 -mig 1 && nvidia-smi mig -i 1 -cgi 19,19 -C")
    try:
        assert "1:0" not in listed(boxes), "the control: nobody notices by itself"
        foretold, written, again = run_roles("boxes", Ask(check=True, then=f"cat {SPECIFICATION}"), Ask(), Ask())
        assert foretold.steps == [f"write {SPECIFICATION} for the current devices"]
        assert "all" in names(foretold.seen) and "1:0" not in names(foretold.seen)
        assert written.steps == foretold.steps
        assert written.result["smoke_test"] == "a container of podman sees 4 devices, the host's own"
        assert again.steps == []
        assert {"0", "1:0", "1:1"} <= set(listed(boxes)) and "1" not in listed(boxes)
        said = boxes.check_output(f"podman run --rm --network=none --device nvidia.com/gpu=1:1 {image} nvidia-smi -L")
        assert said.count("MIG 1g.10gb") == 2
    finally:
        boxes.run("nvidia-smi mig -i 1 -dci; nvidia-smi mig -i 1 -dgi; nvidia-smi -i 1 -mig 0")


def test_each_driver_change_regenerates_the_specification(boxes):
    """Let the path unit regenerate the specification without a run of the role.

    If the service stayed active, the path unit would miss the second change.
    """
    for _time in range(2):
        # Wait until systemd has noticed the end of the service. Until then, systemd does not watch for changes.
        watching = "systemctl show --property=SubState --value nvidia-cdi-refresh.path"
        boxes.check_output(f"timeout 120 sh -c 'until [ $({watching}) = waiting ]; do sleep 0.1; done'")
        boxes.check_output(f"rm {SPECIFICATION}")
        boxes.check_output("touch /lib/modules/$(uname -r)/modules.dep")
        deadline = time.monotonic() + 120
        while not boxes.file(SPECIFICATION).exists:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert sorted(listed(boxes)) == sorted(["0", "1", *gpus(boxes.check_output("nvidia-smi -L")), "all"])


def test_specification_without_driver_is_an_error(boxes):
    index = boxes.check_output("ls /lib/modules/$(uname -r)/modules.dep")
    without, with_driver = run_roles(
        "boxes",
        Ask(
            {"container_toolkit_smoke_test": False},
            first=f"mv {index} /tmp/modules.dep && rm {SPECIFICATION}",
            then=f"mv /tmp/modules.dep {index}",
        ),
        Ask(),
    )
    assert without.steps == [] and without.result["notes"][0].startswith("no driver for the running kernel")
    assert with_driver.result["notes"] == [] and boxes.file(SPECIFICATION).exists
