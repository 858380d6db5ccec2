# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from vgpu_host import CLIENT, ENVIRONMENT, IMAGE, MAKE_IMAGE, VgpuHost

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def ada(lab_host):
    host = VgpuHost("ada", lab_host("ada"))
    host.name_gpus()
    return host


@pytest.fixture(scope="session")
def container(ada):
    """Return a function that runs the client in a container with the tenant's device.

    The function takes a tenant, a user and the client's arguments, and returns the output.
    """
    ada.ask(MAKE_IMAGE)

    def run(tenant, *words, user="0"):
        device = f"--device openfleet.io/vgpu={tenant}" if tenant else ""
        told = ada.ask(
            f"podman run --rm --network=none --user={user} {device} --env-file {ENVIRONMENT} "
            f"--volume /run/stub-card:/run/stub-card {IMAGE} {CLIENT} {' '.join(words)}"
        )
        return [int(word) for word in told.split()]

    yield run
    ada.host.run(f"podman image rm --force {IMAGE}")
