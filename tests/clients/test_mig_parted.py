# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let NVIDIA's mig-parted change simulated GPUs.

Its result must match gpu_info and an independent reader.
"""

from __future__ import annotations

import os
import subprocess

import pytest
import yaml

from tests.clients import mig_parted
from tests.clients.client_archive import NotOffered
from tests.integration.simulated_host import SimulatedHost

pytestmark = [
    # Building the program takes a minute.
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and NVML's setters: run as root"),
]

#: A model whose MIG mode changes at once, one that needs a reset, and one with four slices. The profiles fill each GPU.
LAYOUTS = {
    "H100-80GB": {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
    "A100-40GB": {"4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1},
    "A30-24GB": {"2g.12gb": 1, "1g.6gb": 2},
}


@pytest.fixture(scope="module")
def program():
    try:
        return mig_parted.build()
    except NotOffered as reason:
        pytest.skip(f"mig-parted: {reason}")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return SimulatedHost.build(tmp_path_factory.mktemp("mig-parted"))


class Parted:
    """mig-parted on a simulated host, in a mount namespace with a driver's files."""

    def __init__(self, program, host: SimulatedHost, folder) -> None:
        self.program, self.host, self.folder = program, host, folder
        (folder / "proc").mkdir()
        self.script = folder / "run.sh"
        self.script.write_text("set -e\ngpusim kernel-files 2>/dev/null\n" + mig_parted.WITH_MODULES)

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        apart = ["unshare", "--mount", "--propagation", "private", "sh", str(self.script), str(self.folder / "proc")]
        return self.host.run([*apart, str(self.program), *arguments], check=False)

    def wants(self, **labels: dict) -> list[str]:
        """Write a configuration file, and return the option with its path."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump({"version": "v1", "mig-configs": labels}))
        return ["-f", str(path)]


@pytest.fixture(params=LAYOUTS)
def case(request, program, build, tmp_path):
    """Return mig-parted on a host with two GPUs, and a layout's profiles."""
    host = SimulatedHost(tmp_path / "host", build.library).create([{"model": request.param, "count": 2}], host="parted")
    return Parted(program, host, tmp_path), LAYOUTS[request.param]


def seen_by_gpu_info(host: SimulatedHost) -> list[tuple[bool, dict[str, int]]]:
    """Return each GPU's MIG mode and its number of instances by profile."""
    found = []
    for gpu in host.module("gpu_info")["gpus"]:
        names = [instance["profile"] for instance in gpu["mig"]["instances"]]
        found.append((gpu["mig"]["enabled"], {name: names.count(name) for name in names}))
    return found


def test_a_layout_is_applied_and_asserted(case):
    parted, profiles = case
    layout = [{"devices": [0], "mig-enabled": True, "mig-devices": profiles}, {"devices": [1], "mig-enabled": False}]
    options = parted.wants(half=layout, none=[{"devices": "all", "mig-enabled": False}])
    before = parted.run("assert", *options, "-c", "half")
    assert before.returncode != 0 and "not currently applied" in before.stderr
    applied = parted.run("apply", *options, "-c", "half")
    assert applied.returncode == 0, applied.stderr
    assert seen_by_gpu_info(parted.host) == [(True, profiles), (False, {})]
    assert sorted(name for name, _start in parted.host.seen()[0]) == sorted(
        name for name, count in profiles.items() for _ in range(count)
    )
    assert parted.run("assert", *options, "-c", "half").returncode == 0
    assert parted.run("assert", *options, "-c", "none").returncode != 0
    exported = yaml.safe_load(parted.run("export").stdout)["mig-configs"]["current"]
    assert [entry.get("mig-devices") or {} for entry in exported] == [profiles, {}]
    off = parted.run("apply", *options, "-c", "none")
    assert off.returncode == 0, off.stderr
    assert seen_by_gpu_info(parted.host) == [(False, {}), (False, {})]


def test_a_layout_that_does_not_fit_is_refused(case):
    parted, profiles = case
    too_many = {name: count + 1 for name, count in profiles.items()}
    refused = parted.run(
        "apply", *parted.wants(all=[{"devices": [0], "mig-enabled": True, "mig-devices": too_many}]), "-c", "all"
    )
    assert refused.returncode != 0
    # The run ends with a GPU without instances, because mig-parted does not roll back.
    assert seen_by_gpu_info(parted.host)[0] == (True, {})
