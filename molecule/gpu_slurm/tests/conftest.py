# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab import host_modules
from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from slurm_host import GPUS, SlurmHost

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def host(lab_host):
    """Return the host with the collection's modules and the device nodes of the GPUs."""
    found = SlurmHost("one", lab_host("one"))
    host_modules.install("one")
    # The simulator creates the nodes of capabilities, and none of GPUs. slurmd only checks that they exist.
    names = " ".join(f"/dev/nvidia{index}" for index in GPUS)
    found.ask(f"for name in {names}; do [ -e $name ] || mknod -m 666 $name c 1 3; done")
    return found
