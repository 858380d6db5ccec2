# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test running tenants during changes of quota or library, and after a restart."""

from __future__ import annotations

import copy

import pytest
from vgpu_host import CARD_MIB, DIRECTORY, GIB_IN_MIB, OUT_OF_MEMORY

from tests.lab.lab_fixtures import changed_tasks, reboot

LIMITER = "molecule/vgpu/limiter.yml"


@pytest.fixture
def layout(ada):
    """Return the inventory's layout for changes, and restore it after the test."""
    yield copy.deepcopy(ada.layout())
    ada.apply(ada.layout())


def tenant_of(layout, name):
    return next(tenant for tenant in layout[0]["vgpu"]["tenants"] if tenant["name"] == name)


def test_larger_quota_reaches_a_running_process(ada, layout):
    with ada.serving("notebook-a") as process:
        assert process("alloc 8000") == [0]
        assert process("alloc 1000") == [OUT_OF_MEMORY]
        tenant_of(layout, "notebook-a")["memory"] = "10GiB"
        assert ada.apply(layout)["changed"]
        process.until("info", [10 * GIB_IN_MIB - 8000, 10 * GIB_IN_MIB])
        assert process("alloc 1000") == [0]


def test_smaller_quota_ends_no_process_and_blocks_growth(ada, layout):
    with ada.serving("notebook-a") as process:
        assert process("alloc 5000") == [0]
        tenant_of(layout, "notebook-a")["memory"] = "4GiB"
        ada.apply(layout)
        process.until("info", [0, 4 * GIB_IN_MIB])
        assert process("alloc 1") == [OUT_OF_MEMORY]


def test_waterline_changes_under_running_programs(ada, layout):
    """Change the waterline with site.yml and gpu-layout.

    The offline tenant's memory shows which waterline applies: a request that ends 1 MiB above it is refused.
    """
    tenants = [
        {"name": "serve", "memory": "40GiB", "sm_percent": 50, "latency": "online"},
        {"name": "train", "memory": "40GiB", "sm_percent": 50, "latency": "offline"},
    ]
    layout[0] = {
        "gpus": [0],
        "sharing": "vgpu",
        "vgpu": {"policy": "colocate", "oversubscribe": {"memory": 2.0}, "waterline_percent": 50, "tenants": tenants},
    }
    ada.apply(layout)
    half, most = CARD_MIB // 2, CARD_MIB * 8 // 10
    with ada.serving("serve") as serve, ada.serving("train") as train:
        assert serve("alloc 2000") == [0]
        assert train(f"alloc {half - 2000 + 1}") == [OUT_OF_MEMORY]
        assert train("alloc 10000") == [0]
        changed = copy.deepcopy(layout)
        changed[0]["vgpu"]["waterline_percent"] = 80
        ada.play("site.yml", "--tags", "gpu_layout,vgpu_limiter", gpu_layout=changed, vgpu_limiter_services={})
        train.until("alloc 12000", [0])
        assert train(f"alloc {most - 24000 + 1}") == [OUT_OF_MEMORY]
        ada.apply(layout)
        # The tenant keeps its memory, and the online tenant may use the rest.
        train.until("alloc 100", [OUT_OF_MEMORY])
        assert serve("alloc 4000") == [0]
    # The run above removed the limiter's files for the inventory's services, so run site.yml again.
    ada.play("site.yml", "--tags", "gpu_layout,vgpu_limiter")


def test_removed_tenant_cannot_be_started(ada, layout):
    layout[0]["vgpu"]["tenants"] = [t for t in layout[0]["vgpu"]["tenants"] if t["name"] != "batch"]
    ada.apply(layout)
    refused = ada.host.run("vgpu-run batch true")
    assert refused.rc == 125 and "notebook-a, pair" in refused.stderr
    # Without a quota, the service must not start.
    assert ada.host.run("systemctl start notebook.service").rc != 0


def test_renamed_tenant_has_one_quota_under_both_names(ada, container, layout):
    tenant = tenant_of(layout, "notebook-a")
    quota = 8 * GIB_IN_MIB
    with ada.serving("notebook-a") as process:
        assert process("alloc 5000") == [0]
        tenant.update(name="notebook-z", was="notebook-a")
        ada.apply(layout)
        for name in ("notebook-z", "notebook-a"):
            assert container(name, "info") == [quota - 5000, quota]
            assert ada.client(name, "info") == [quota - 5000, quota]
        assert process("alloc 3000") == [0]
    assert container("notebook-z", "fill", "64") == [quota, OUT_OF_MEMORY]
    del tenant["was"]
    ada.apply(layout)
    assert ada.host.run("ls /etc/cdi/openfleet-vgpu-notebook-*").stdout.split() == [
        "/etc/cdi/openfleet-vgpu-notebook-z.json"
    ]
    assert container("notebook-z", "info") == [quota, quota]
    # Change the name back, so that the inventory's tenant has the same key again.
    tenant.update(name="notebook-a", was="notebook-z")
    ada.apply(layout)


def test_new_library_does_not_disturb_running_programs(ada):
    """Check that a new library does not disturb programs that use the old library.

    The controller builds the library, so the library has another name.
    """
    old = ada.current()
    quota = 8 * GIB_IN_MIB
    with ada.serving("notebook-a") as process:
        assert process("alloc 5000") == [0]
        ada.play(LIMITER, vgpu_limiter_source="controller")
        new = ada.current()
        assert new != old and sorted(ada.versions()) == sorted([new, old])
        # Processes with the old library and with the new library count their memory in the same region.
        assert ada.client("notebook-a", "info") == [quota - 5000, quota]
        assert process("alloc 3000") == [0]
        assert ada.filled("notebook-a") == [192, OUT_OF_MEMORY]
        assert process("info") == [192, quota]
        again = ada.play(LIMITER, vgpu_limiter_source="controller")
        assert "changed=0" in again
    # When no process uses the old library, it is removed. A second run of site.yml changes nothing else.
    told = ada.play("site.yml", "--diff", vgpu_limiter_source="controller")
    assert f"remove {DIRECTORY}/{old}" in told
    assert changed_tasks(told) == {("openfleet.gpu.vgpu_limiter : Install or remove the limiter", "ada")}
    assert ada.versions() == [new]


def test_everything_is_restored_after_a_reboot(ada):
    reboot(ada.host)
    quota = 8 * GIB_IN_MIB
    assert ada.filled("notebook-a") == [quota, OUT_OF_MEMORY]
    assert ada.smi("notebook-a")[0] == [quota, 0]
