# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the Kubernetes mapping in gpu_kubernetes and site.yml.

The hosts are local folders.
"""

from __future__ import annotations

import re

import pytest
import yaml

from tests.integration.simulated_fleet import Fleet

MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}]
TENANTS = [
    {"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}},
]
SPLIT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}]},
]
REFUSAL = (
    r"gpu_layout\[0\] \(gpu 0\): the device plugin does not support tenants with quotas\. "
    r"hami or volcano_vgpu( or \w+)* can express it \(gpu_kubernetes_backend\)\."
)


@pytest.fixture
def fleet(host, library, tmp_path):
    fleet = Fleet(tmp_path, library, ["one", "two"])
    for name in fleet.hosts:
        node = {"gpu_kubernetes_node": "node-%s" % name, "gpu_kubernetes_state": "planned"}
        fleet.more[name] = {"gpu_kubernetes_backend": "nvidia_device_plugin", **node}
    return fleet


def said(run):
    return " ".join((run.stdout + run.stderr).split())


def test_role_prints_the_mapping_or_refuses_the_layout(fleet, tmp_path):
    task = {"ansible.builtin.include_role": {"name": "openfleet.gpu.gpu_kubernetes", "tasks_from": "plan"}}
    play = tmp_path / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [task]}]))
    run = fleet.play({"one": MIG, "two": TENANTS}, playbook=play)
    assert "node node-one: nvidia.com/mig-3g.40gb 1, nvidia.com/mig-1g.10gb 2" in said(run)
    # The plan explains the labels even without a cluster.
    assert (
        "node node-one: label nvidia.com/mig.config: managed-by-openfleet-gpu (no MIG configuration, so that mig-manager changes "
        "nothing if it is enabled later)" in said(run)
    )
    assert re.search("two: %s" % REFUSAL, said(run))
    assert (run.stdout.count("failed=1"), run.stdout.count("changed=0")) == (1, 2), run.stdout
    assert fleet.seen() == {"one": [], "two": []}


@pytest.mark.core
def test_site_refuses_inexpressible_layouts_before_any_change(fleet):
    # The variable gpu_site_tolerate has no effect on mistakes in the inventory.
    run = fleet.play({"one": MIG, "two": SPLIT}, "-e", "gpu_site_tolerate=1")
    assert run.returncode != 0
    assert "node node-one: nvidia.com/mig-3g.40gb 1, nvidia.com/mig-1g.10gb 2" in said(run)
    assert "two: gpu_layout[0] (gpu 0): 3g.40gb is split into compute instances" in said(run)
    assert fleet.seen() == {"one": [], "two": []}
