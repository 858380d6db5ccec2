# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from lab_fixtures import host_vars, lab_host
from nvidia_smi import read_gpus

__all__ = ["gpus_of", "host_vars", "lab_host"]


@pytest.fixture(scope="session")
def gpus_of(lab_host):
    """A function from the name of a lab host to its GPUs as nvidia-smi tells of them now."""

    def read(host_name: str):
        host = lab_host(host_name)

        def run(command: str) -> tuple[int, str]:
            done = host.run(command)
            return done.rc, done.stdout + done.stderr

        return read_gpus(run)

    return read
