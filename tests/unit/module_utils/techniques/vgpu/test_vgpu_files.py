# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the files of tenants.

tests/limiter and molecule/vgpu test the files with the library, systemd and Podman.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant, from_data

GIB = 2**30
SOURCES = Path(__file__).parents[5] / "roles/vgpu_limiter/files/src"
A, B = "GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d", "GPU-0b1f2c3d-4aac-4bd7-8d0f-2bb3ae2f1f0e"
PAIR = VgpuTenant("pair-1", 8 * GIB, 30, (VgpuSeat(A, 0), VgpuSeat(B, 3)), "burst", 2)
ONE = VgpuTenant("one", GIB, 100, (VgpuSeat(A, 63),))


def settings(text):
    """Parse the file as systemd does for environment files, and podman for --env-file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split("=", 1) for line in lines]
    assert all(re.fullmatch("[A-Z_]+", name) and not re.search(r"[\s\"'\\$#]", value) for name, value in pairs)
    return dict(pairs)


def of(tenant, name):
    return vgpu_files.files(tenant)["etc/openfleet-gpu/vgpu/%s/%s" % (tenant.name, name)]


def cdi(tenant):
    return json.loads(vgpu_files.files(tenant)["etc/cdi/openfleet-vgpu-%s.json" % tenant.name])


@pytest.mark.parametrize("tenant", [PAIR, ONE, dataclasses.replace(ONE, provider="dmem")])
def test_spec_names_its_tenant(tenant):
    files = vgpu_files.files(tenant)
    assert next(iter(files)) == vgpu_files.spec_path(tenant.name)
    assert from_data(json.loads(files[vgpu_files.spec_path(tenant.name)])) == tenant


def test_quota_is_readable_for_the_library():
    assert of(PAIR, "quota").splitlines()[1:] == [
        "version 1",
        "tenant pair-1",
        "policy burst",
        "priority 2",
        "gpu %s memory 8589934592 sm 30 seat 0" % A,
        "gpu %s memory 8589934592 sm 30 seat 3" % B,
    ]


def test_managed_oversubscription_is_a_line_of_the_quota():
    """Omit the line if the option is not set, so that older libraries report no error."""
    beyond = dataclasses.replace(PAIR, oversubscribe_managed=True)
    lines, without = of(beyond, "quota").splitlines(), of(PAIR, "quota").splitlines()
    assert [line for line in lines if line not in without] == ["managed oversubscribed"]
    assert from_data(json.loads(of(beyond, "tenant.json"))) == beyond
    # A release that did not know this key wrote such a file.
    data = vgpu_files.to_data(PAIR)
    del data["oversubscribe_managed"]
    assert from_data(data) == PAIR


def test_quota_of_a_colocated_tenant_has_its_class_and_the_waterline():
    offline = dataclasses.replace(PAIR, policy="colocate", priority=1, waterline_percent=70)
    assert of(offline, "quota").splitlines()[3:6] == ["policy colocate", "priority 1", "waterline 70"]
    assert offline.latency == "offline"
    assert dataclasses.replace(offline, priority=0).latency == "online"
    assert PAIR.latency is None
    assert from_data(json.loads(of(offline, "tenant.json"))) == offline


def test_renamed_tenant_has_files_of_both_names_and_one_count():
    before = dataclasses.replace(PAIR, provider="dmem")
    after = dataclasses.replace(before, name="duo", counted_as="pair-1", aliases=("pair-1",))
    old, new = vgpu_files.files(before), vgpu_files.files(after)
    spec = vgpu_files.spec_path("pair-1")
    assert next(iter(new)) == spec
    assert from_data(json.loads(new.pop(spec))) == after
    del old[spec]
    # Programs and containers that use the earlier name must still get the same settings.
    assert {path: new[path] for path in old} == old
    assert new["etc/openfleet-gpu/vgpu/pair-1/alias_of"] == "duo\n"
    assert "etc/openfleet-gpu/vgpu/duo/alias_of" not in new
    quota = of(after, "quota").splitlines()
    assert quota[2:4] == ["tenant duo", "counted_as pair-1"]
    assert [line for line in quota[1:] if line != "counted_as pair-1" and line != "tenant duo"] == [
        line for line in of(before, "quota").splitlines()[1:] if line != "tenant pair-1"
    ]
    assert settings(of(after, "env"))["OPENFLEET_VGPU"] == "duo"
    # Both names share one limit of the kernel.
    assert of(after, "slice") == old["etc/openfleet-gpu/vgpu/pair-1/slice"]
    assert "Slice=openfleet-vgpu-pair\\x2d1.slice" in of(after, "systemd.conf").splitlines()
    device, other = (cdi(dataclasses.replace(one, provider="preload"))["devices"][0] for one in (after, before))
    mounts = [{m["containerPath"]: m["hostPath"] for m in one["containerEdits"]["mounts"]} for one in (device, other)]
    assert device["name"] == "duo"
    assert set(mounts[0].items()) ^ set(mounts[1].items()) == {
        ("/etc/openfleet-gpu/vgpu/duo",) * 2,
        ("/etc/openfleet-gpu/vgpu/pair-1",) * 2,
    }


def test_files_in_run_of_a_renamed_tenant_keep_their_names():
    after = dataclasses.replace(PAIR, name="duo", counted_as="pair-1", aliases=("pair-1",))
    assert vgpu_files.tmpfiles([after]) == vgpu_files.tmpfiles([PAIR])
    assert vgpu_files.shared_files(after) == vgpu_files.shared_files(PAIR)


def test_spec_of_a_tenant_with_one_name_is_compatible():
    assert not {"counted_as", "aliases"}.intersection(vgpu_files.to_data(PAIR))


def test_library_enforces_the_slices_limits():
    """A container is outside the slice by default, so the library enforces the limits."""
    bound = dataclasses.replace(PAIR, provider="dmem")
    assert of(bound, "quota") == of(PAIR, "quota")
    # A dash in the slice's name would place the slice below another tenant's slice.
    assert of(bound, "slice") == "openfleet-vgpu-pair\\x2d1.slice\n"
    assert "Slice=openfleet-vgpu-pair\\x2d1.slice" in of(bound, "systemd.conf").splitlines()
    assert "etc/openfleet-gpu/vgpu/pair-1/slice" not in vgpu_files.files(PAIR)


def test_host_and_container_processes_share_a_tenant():
    own = settings(of(PAIR, "env"))
    assert own == {
        "OPENFLEET_VGPU": "pair-1",
        "CUDA_VISIBLE_DEVICES": "%s,%s" % (A, B),
        "LD_PRELOAD": "/usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so",
    }
    (device,) = cdi(PAIR)["devices"]
    inside = dict(variable.split("=", 1) for variable in device["containerEdits"]["env"])
    # In a container, /etc/ld.so.preload loads the library, so programs need not pass on the variable LD_PRELOAD.
    assert inside == {name: value for name, value in own.items() if name != "LD_PRELOAD"}


def test_mps_client_gets_its_limits_without_the_library():
    client = dataclasses.replace(ONE, provider="mps", sm_percent=25)
    pipes = "/run/openfleet-mps/vgpu-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d"
    own = settings(of(client, "env"))
    assert own == {
        "OPENFLEET_VGPU": "one",
        "CUDA_VISIBLE_DEVICES": A,
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        # MPS accepts only the units M and G, and ignores all others.
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M",
    }
    edits = cdi(client)["devices"][0]["containerEdits"]
    assert dict(variable.split("=", 1) for variable in edits["env"]) == own
    assert [mount["hostPath"] for mount in edits["mounts"]] == [pipes, "/dev/shm"]
    assert "gpu %s memory 0 sm 100 seat 63" % A in of(client, "quota").splitlines()


def test_container_gets_the_library_and_only_its_quota():
    specification = cdi(PAIR)
    assert specification["kind"] == "openfleet.io/vgpu"
    assert [device["name"] for device in specification["devices"]] == ["pair-1"]
    mounts = {
        (m["hostPath"], m["containerPath"]): "rw" if "rw" in m["options"] else "ro"
        for m in specification["devices"][0]["containerEdits"]["mounts"]
    }
    assert mounts == {
        ("/usr/lib/openfleet-gpu/vgpu",) * 2: "ro",
        ("/etc/openfleet-gpu/vgpu/pair-1",) * 2: "ro",
        ("/usr/lib/openfleet-gpu/vgpu/ld.so.preload", "/etc/ld.so.preload"): "ro",
        # The folder is mounted, not the socket, because a restarted agent creates a new socket in the folder.
        ("/run/openfleet-gpu/vgpu/agent/pair-1",) * 2: "ro",
        # Only single files are mounted. In a writable directory, a container could create a link to a file of the host.
        ("/run/openfleet-gpu/vgpu/tenants/pair-1/region.1",) * 2: "rw",
        ("/run/openfleet-gpu/vgpu/gpus/%s.1" % A,) * 2: "rw",
        ("/run/openfleet-gpu/vgpu/gpus/%s.1" % B,) * 2: "rw",
    }


def test_container_loads_the_front_library_before_the_driver():
    """The front library is in the folder of the limiter's library.

    Mounts set the order in which the loader searches it, and provide the driver's file.
    """
    without = cdi(PAIR)["devices"][0]["containerEdits"]["mounts"]
    driver = "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    files = vgpu_files.files(PAIR, driver)
    mounts = json.loads(files[vgpu_files.cdi_path("pair-1")])["devices"][0]["containerEdits"]["mounts"]
    assert mounts[: len(without)] == without
    assert [(m["hostPath"], m["containerPath"]) for m in mounts[len(without) :]] == [
        ("/usr/lib/openfleet-gpu/vgpu/front.conf", "/etc/ld.so.conf.d/00-driver-openfleet-vgpu.conf"),
        ("/" + driver, "/usr/lib/openfleet-gpu/driver/libcuda.so.1"),
    ]
    assert all("ro" in m["options"] for m in mounts[len(without) :])
    # The loader must be able to map the library as executable.
    assert "noexec" not in mounts[-1]["options"]
    client = dataclasses.replace(ONE, provider="mps")
    assert vgpu_files.files(client, driver) == vgpu_files.files(client)


@pytest.mark.parametrize(("name", "version"), [("lab-7", "0.3.0"), ("7-lab", "0.5.0")])
def test_specification_has_the_oldest_version_with_such_names(name, version):
    assert cdi(dataclasses.replace(ONE, name=name))["cdiVersion"] == version


def test_files_in_run_are_restored_at_boot():
    lines = vgpu_files.tmpfiles([PAIR, ONE]).splitlines()
    for tenant in (PAIR, ONE):
        for file in vgpu_files.shared_files(tenant):
            path = file.path
            assert lines.count("f /%s 0666 root root -" % path) == 1
            folder = "/" + path.rpartition("/")[0]
            # A directory must come before its content, and only root may write to it.
            assert lines.index("d %s 0755 root root -" % folder) < lines.index("f /%s 0666 root root -" % path)


def test_tenant_with_a_group_shares_its_region_only_with_it():
    """All users can write to the GPU's turnstile file, because all tenants share it."""
    tenant = dataclasses.replace(ONE, group="researchers")
    lines = vgpu_files.tmpfiles([tenant]).splitlines()
    assert "f /%s 0660 root researchers -" % vgpu_files.region_path(ONE.name) in lines
    assert all("f /%s 0666 root root -" % vgpu_files.turnstile_path(gpu) in lines for gpu in ONE.gpus)
    assert "SupplementaryGroups=researchers" in vgpu_files.files(tenant)[vgpu_files.drop_in_path(ONE.name)].splitlines()
    assert "Supplementary" not in vgpu_files.files(ONE)[vgpu_files.drop_in_path(ONE.name)]
    assert from_data(json.loads(json.dumps(vgpu_files.to_data(tenant)))) == tenant


def test_sizes_of_shared_files_match_the_library():
    """Compare the sizes with the library's structures.

    A file above this size was not created by the library. A lower size would truncate mappings.
    """
    program = (
        '#include "formats/region.h"\n#include "formats/turnstile.h"\n'
        '_Static_assert(sizeof(struct region) == %d && sizeof(struct turnstile_file) == %d, "sizes");\n'
        % (vgpu_files.REGION_BYTES, vgpu_files.TURNSTILE_BYTES)
        + '_Static_assert(TURNSTILE_PAGE_BYTES == %d && TURNSTILE_TERMS_BYTES == %d, "sizes");\n'
        % (vgpu_files.SEAT_PAGE_BYTES, vgpu_files.TERMS_BYTES)
        + '_Static_assert(sizeof(struct seat) <= TURNSTILE_PAGE_BYTES, "sizes");\n'
        + '_Static_assert(sizeof(struct turnstile_terms) == 64 + 64 * 80, "terms of the agent");\n'
    )
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-I", str(SOURCES), "-x", "c", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("tenants", "mib"), [(0, 64), (1, 64), (90, 64), (100, 64), (103, 128), (1000, 640)])
def test_tmpfs_has_room_for_twice_the_files(tenants, mib):
    """Each tenant needs 328,512 bytes and each GPU 17,024.

    Twice the sum is rounded up to a multiple of 64 MiB.
    """
    there = [dataclasses.replace(ONE, name="t%d" % number) for number in range(tenants)]
    options = next(
        line for line in vgpu_files.limited_folder(there).unit_text.splitlines() if line.startswith("Options=")
    )
    assert "size=%dM" % mib in options.partition("=")[2].split(",")


@pytest.mark.parametrize("name", ["a-", "a.", "a_"])
def test_name_invalid_for_cdi_is_refused(name):
    assert "cannot end in %s" % name[-1] in str(vgpu_files.name_problem(name))


@pytest.mark.parametrize("name", ["a", "A-1", "x" * 63])
def test_other_names_are_valid(name):
    assert vgpu_files.name_problem(name) is None
