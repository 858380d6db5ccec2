# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check after site.yml that each tenant stays within its quota.

The limit must apply however a process is started.
"""

from __future__ import annotations

import json
import re

import pytest
from vgpu_host import CARD_MIB, CLIENT, DIRECTORY, ENVIRONMENT, GIB_IN_MIB, IMAGE, OUT_OF_MEMORY

QUOTA_MIB = {"notebook-a": 8 * GIB_IN_MIB, "batch": 16 * GIB_IN_MIB, "pair": 4 * GIB_IN_MIB}


def test_programs_of_no_tenant_are_not_limited(ada):
    """Check as a control that programs without a tenant are not limited."""
    assert ada.filled(None) == [CARD_MIB // 64 * 64, OUT_OF_MEMORY]
    assert ada.smi(None) == [[CARD_MIB, 0], [CARD_MIB, 0]]


@pytest.mark.parametrize("tenant", sorted(QUOTA_MIB))
def test_command_is_limited_to_its_quota(ada, tenant):
    quota = QUOTA_MIB[tenant]
    assert ada.client(tenant, "info") == [quota, quota]
    assert ada.filled(tenant) == [quota, OUT_OF_MEMORY]
    # When a process has ended, its memory is free again.
    assert ada.client(tenant, "info") == [quota, quota]


def test_a_tenant_of_two_gpus_has_its_quota_on_each(ada):
    assert [ada.filled("pair", gpu) for gpu in (0, 1)] == [[QUOTA_MIB["pair"], OUT_OF_MEMORY]] * 2


def test_processes_of_a_tenant_share_only_its_quota(ada):
    with ada.serving("notebook-a") as first:
        assert first("alloc 5000") == [0]
        assert ada.client("notebook-a", "info") == [QUOTA_MIB["notebook-a"] - 5000, QUOTA_MIB["notebook-a"]]
        assert ada.filled("notebook-a") == [(QUOTA_MIB["notebook-a"] - 5000) // 64 * 64, OUT_OF_MEMORY]
        assert ada.filled("pair") == [QUOTA_MIB["pair"], OUT_OF_MEMORY]
        # An operator sees the tenant's use from outside.
        (shown,) = [one for one in json.loads(ada.ask("vgpu-top --json"))["tenants"] if one["name"] == "notebook-a"]
        assert (shown["gpus"][0]["used_bytes"], len(shown["processes"])) == (5000 * 2**20, 1)
        assert re.search("vgpu notebook-a .* 5000 ?MiB used by 1 process", ada.ask("gpu-layout show"))
        # NVIDIA's own program shows the tenant its quota and its use.
        assert ada.smi("notebook-a")[0] == [QUOTA_MIB["notebook-a"], 5000]
    assert ada.smi("notebook-a")[0] == [QUOTA_MIB["notebook-a"], 0]


def test_tenants_are_listed(ada):
    rows = [line.split() for line in ada.ask("vgpu-run --list").splitlines()[1:]]
    assert sorted((row[0], row[3], row[4], row[5]) for row in rows) == sorted(
        [
            ("notebook-a", ada.uuids[0], "8192", "30%"),
            ("batch", ada.uuids[1], "16384", "50%"),
            ("pair", ada.uuids[0], "4096", "20%"),
            ("pair", ada.uuids[1], "4096", "20%"),
        ]
    )


def test_service_is_a_tenant_by_the_inventory(ada):
    ada.ask("rm -f /run/notebook.in /run/notebook.out && systemctl restart notebook.service")
    try:
        pid = ada.ask("systemctl show -p MainPID --value notebook.service")
        ada.ask(
            "for i in $(seq 1800); do [ -p /run/notebook.in ] && break; sleep 0.1; done; "
            "timeout 180 sh -c 'echo info >/run/notebook.in'; "
            "for i in $(seq 1800); do [ -s /run/notebook.out ] && exit 0; sleep 0.1; done; exit 1"
        )
        assert ada.ask("cat /run/notebook.out") == f"{QUOTA_MIB['batch']} {QUOTA_MIB['batch']}"
        assert "OPENFLEET_VGPU=batch" in ada.ask(f"tr '\\0' '\\n' </proc/{pid}/environ").splitlines()
    finally:
        ada.host.run("systemctl stop notebook.service")


def test_sandboxed_service_of_another_user_is_limited(ada):
    properties = (
        f"-p DynamicUser=yes -p ProtectSystem=strict -p EnvironmentFile={ENVIRONMENT} "
        "-p EnvironmentFile=/etc/openfleet-gpu/vgpu/notebook-a/env "
        "-p ReadWritePaths='/run/openfleet-gpu/vgpu /run/stub-card'"
    )
    told = ada.ask(f"systemd-run --quiet --wait --pipe --collect {properties} {CLIENT} fill 64")
    assert told == f"{QUOTA_MIB['notebook-a']} {OUT_OF_MEMORY}"


def test_only_members_of_a_tenants_group_can_use_it(ada):
    """Let only members of the tenant's group use the tenant.

    vgpu-run refuses other users. Without vgpu-run, these users get neither GPU memory nor another tenant's quota.
    """
    command = f"{CLIENT} fill 64"
    member, other = ("setpriv --reuid=65534 --regid=65534 --groups=%s " % group for group in ("operator", "nogroup"))
    assert ada.ask(member + ada.shell(command, "batch")).split() == [str(QUOTA_MIB["batch"]), str(OUT_OF_MEMORY)]
    refused = ada.host.run(other + ada.shell(command, "batch"))
    assert refused.rc == 125
    assert "cannot be written by nobody" in refused.stderr
    assert "Join its group, operator" in refused.stderr
    past_it = f"env $(cat {ENVIRONMENT}) $(grep ^[A-Z] /etc/openfleet-gpu/vgpu/batch/env) {command}"
    assert ada.ask(other + past_it).split() == ["0", str(OUT_OF_MEMORY)]


def test_tenant_cannot_fill_run(ada):
    region = "/run/openfleet-gpu/vgpu/tenants/notebook-a/region.1"
    size, options = ada.ask("findmnt --noheadings --bytes --output SIZE,OPTIONS /run/openfleet-gpu/vgpu").split()
    assert int(size) == 64 * 2**20
    assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
    before = int(ada.ask(f"stat -c %s {region}"))
    free = "df --output=avail --block-size=1M /run | tail -1"
    free_mib = int(ada.ask(free))
    try:
        filled = ada.host.run(f"setpriv --reuid=65534 --clear-groups fallocate --offset 1M --length 1G {region}")
        assert "No space left" in filled.stderr
        assert abs(int(ada.ask(free)) - free_mib) < 64
    finally:
        ada.ask(f"truncate -s {before} {region}")


def test_neighbours_cannot_write_a_tenants_files(ada):
    assert ada.ask("systemctl is-active openfleet-vgpu-agent.service") == "active"
    shown = json.loads(ada.ask("gpu-layout show --json"))["vgpu_tenants"]
    assert {one["tenant"]["name"]: one["isolation"] for one in shown} == dict.fromkeys(QUOTA_MIB, "read_only")
    assert "openfleet-vgpu-agent.service" in ada.ask("ls /etc/systemd/system/multi-user.target.wants")


# --- containers ---------------------------------------------------------------------------------


def test_container_without_the_device_is_not_limited(container):
    assert container(None, "fill", "64") == [CARD_MIB // 64 * 64, OUT_OF_MEMORY]


@pytest.mark.parametrize("user", ["0", "65534"])
def test_container_with_the_device_is_limited(ada, container, user):
    quota = QUOTA_MIB["notebook-a"]
    assert container("notebook-a", "info", user=user) == [quota, quota]
    assert container("notebook-a", "fill", "64", user=user) == [quota, OUT_OF_MEMORY]


def test_containers_and_commands_of_a_tenant_share_its_quota(ada, container):
    with ada.serving("notebook-a") as first:
        assert first("alloc 5000") == [0]
        assert container("notebook-a", "info") == [QUOTA_MIB["notebook-a"] - 5000, QUOTA_MIB["notebook-a"]]


def test_container_gets_the_library_and_no_other_change(ada, container):
    told = ada.ask(
        f"podman run --rm --network=none --device openfleet.io/vgpu=pair {IMAGE} sh -c "
        f"'cat /etc/ld.so.preload; cat /proc/self/maps'"
    )
    assert told.splitlines()[0] == f"{DIRECTORY}/libopenfleet-vgpu.so"
    assert ada.current() in told
    sockets = "cd /run/openfleet-gpu/vgpu/agent && echo * && [ -S pair/turnstiles.1 ]"
    told = ada.ask(f"podman run --rm --network=none --device openfleet.io/vgpu=pair {IMAGE} sh -c '{sockets}'")
    assert told == "pair"
    spec = json.loads(ada.ask("cat /etc/cdi/openfleet-vgpu-pair.json"))
    assert spec["kind"] == "openfleet.io/vgpu"
    # The whole host must never get this file, because it would then load the limiter into every program.
    assert not ada.host.file("/etc/ld.so.preload").exists
