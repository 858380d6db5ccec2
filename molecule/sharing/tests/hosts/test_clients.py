# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the access of clients to a daemon.

The tests use a CDI device with real Podman, and an environment file with systemd services. CUDA itself needs a GPU.
NVIDIA's control tool replaces a client, because it finds the daemon in the same way as CUDA.
"""

from __future__ import annotations

import pytest
from mps_daemons import NAME, PIPES, UNIT

IMAGE = "localhost/openfleet-client"
CONTAINER = "openfleet-client"
ASK = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"
#: The libraries with which the tool and a shell are linked.
MAKE_IMAGE = (
    "tar -chf /tmp/client.tar -C / usr/bin/nvidia-cuda-mps-control bin/sh bin/stat bin/sleep "
    "$(ldd /usr/bin/nvidia-cuda-mps-control /bin/sh /bin/stat /bin/sleep | grep -o '/lib[^ ]*' | grep -v ':$' | "
    "sort -u | sed 's,^/,,') && podman import --quiet /tmp/client.tar " + IMAGE
)


@pytest.fixture(scope="module")
def image(hopper):
    hopper.check_output(MAKE_IMAGE)
    yield IMAGE
    hopper.run(f"podman image rm --force {IMAGE}")


@pytest.mark.parametrize("user", ["0", "65534"])
def test_a_container_with_the_device_reaches_the_daemon(mps, image, user):
    mps.do("start", percentage=35)
    run = f"podman run --rm --network=none --user={user}"
    device = f"--device openfleet.io/mps={NAME}"
    assert mps.ask(f"{run} {device} {image} sh -c '{ASK}'") == "35.0"
    assert mps.ask(f"{run} {device} {image} sh -c 'echo $CUDA_MPS_PIPE_DIRECTORY'") == PIPES
    # Client and server share memory, so the container must have the host's /dev/shm.
    outside = mps.ask("stat -c %d:%i /dev/shm")
    assert mps.ask(f"{run} {device} {image} stat -c %d:%i /dev/shm") == outside
    without = mps.host.run(f"{run} {image} sh -c '{ASK}'")
    assert without.rc != 0 and "Cannot find MPS control daemon" in without.stdout + without.stderr


def test_running_container_reaches_the_daemon_after_a_restart(mps, image):
    mps.do("start", percentage=35)
    run = f"podman run --detach --rm --name {CONTAINER} --network=none --device openfleet.io/mps={NAME}"
    mps.ask(f"{run} {image} sleep 600")
    try:
        mps.ask(f"systemctl restart {UNIT}")
        # Podman sets the variables of a CDI device only for a container's first process.
        inside = f"podman exec --env CUDA_MPS_PIPE_DIRECTORY={PIPES} {CONTAINER}"
        assert mps.ask(f"{inside} sh -c '{ASK}'") == "35.0"
    finally:
        mps.host.run(f"podman rm --force --time 0 {CONTAINER}")


def test_a_service_with_the_environment_file_reaches_the_daemon(mps):
    mps.do("start", percentage=35)
    service = (
        f"systemd-run --quiet --wait --pipe --collect --uid=65534 -p EnvironmentFile=/etc/openfleet-gpu/mps/{NAME}"
    )
    assert mps.ask(f"{service}.client.env sh -c '{ASK}'") == "35.0"


def test_removed_device_is_unavailable(mps, image):
    mps.do("start")
    mps.do("stop")
    mps.do("forget")
    gone = mps.host.run(f"podman run --rm --network=none --device openfleet.io/mps={NAME} {image} sh -c :")
    assert gone.rc != 0
