# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let NVIDIA's unmodified mig-parted change the GPU of a lab host.

The host has a driver's files.
"""

from __future__ import annotations

import shlex
import subprocess

import pytest
import yaml

from tests.clients import mig_parted
from tests.clients.client_archive import NotOffered
from tests.lab.lab_fixtures import container_name

# Building the program takes a minute.
pytestmark = pytest.mark.thorough

FOLDER = "/var/tmp/mig-parted"
LAYOUT = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}
CONFIGURATION = {
    "version": "v1",
    "mig-configs": {"four": [{"devices": "all", "mig-enabled": True, "mig-devices": LAYOUT}]},
}


@pytest.fixture
def parted(canary):
    """Return a function that runs mig-parted on the host and returns the result."""
    try:
        program = mig_parted.build()
    except NotOffered as reason:
        pytest.skip(f"mig-parted: {reason}")
    canary.ask(f"rm -rf {FOLDER} && mkdir -p {FOLDER}/proc")
    subprocess.run(["podman", "cp", str(program), f"{container_name(canary.name)}:{FOLDER}/mig-parted"], check=True)
    canary.ask(f"printf %s {shlex.quote(yaml.safe_dump(CONFIGURATION))} > {FOLDER}/config.yaml")
    canary.ask(f"printf %s {shlex.quote(mig_parted.WITH_MODULES)} > {FOLDER}/run.sh")
    apart = f"unshare --mount --propagation private sh {FOLDER}/run.sh {FOLDER}/proc"
    yield lambda command: canary.host.run(f"{apart} {FOLDER}/mig-parted {command} -f {FOLDER}/config.yaml -c four")
    canary.host.run(f"rm -rf {FOLDER}")


def test_mig_parted_applies_what_nvidia_smi_and_the_command_show(canary, parted):
    assert parted("assert").rc != 0
    applied = parted("apply")
    assert applied.rc == 0, applied.stderr
    assert parted("assert").rc == 0
    profiles = sorted(name for name, count in LAYOUT.items() for _ in range(count))
    assert sorted(instance.profile for instance in canary.gpus()[0].instances.values()) == profiles
    (entry,) = yaml.safe_load(canary.ask("gpu-layout export"))["gpu_layout"]
    assert {wanted["profile"]: wanted.get("count", 1) for wanted in entry["mig"]} == LAYOUT
