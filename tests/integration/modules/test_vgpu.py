# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test tenants on simulated GPUs, from a layout to a host's files.

The host's files are in the test's folder.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.integration.patience import wait_until

H100 = [{"model": "H100-80GB", "count": 2}]
LIBRARY = "usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so"


def tenant(name, memory="8GiB", sm=30, **more):
    return dict(more, name=name, memory=memory, sm_percent=sm)


def entry(gpus, *tenants, **more):
    return {"gpus": gpus, "sharing": "vgpu", "vgpu": dict(more, tenants=list(tenants))}


@pytest.fixture(name="fleet")
def with_library(host, monkeypatch):
    """Return a host with two GPUs and the limiter's library.

    The host's files are in the folder `root`.
    """
    root = host.folder / "root"
    (root / LIBRARY).parent.mkdir(parents=True)
    (root / LIBRARY).touch()
    monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(root))
    return host.create(H100)


def run(host, *layout, module="layout", **arguments):
    return host.module(module, layout=list(layout), state_directory=str(host.folder / "state.d"), **arguments)


def files(host):
    """Return {path below the root: content} without the library."""
    root = host.folder / "root"
    paths = [path for path in root.rglob("*") if path.is_file() and str(path.relative_to(root)) != LIBRARY]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def quotas(host):
    """Return {tenant: [(GPU index, bytes, percent, seat)]}.

    The function parses the values the way the library does.
    """
    index = {gpu["uuid"]: number for number, gpu in enumerate(json.loads(host.gpusim("show", "--json"))["gpus"])}
    found = {}
    for path, text in files(host).items():
        if path.endswith("/quota"):
            rows = [line.split() for line in text.splitlines() if line.startswith("gpu ")]
            found[Path(path).parent.name] = [
                (index[row[1]], *(int(row[row.index(key) + 1]) for key in ("memory", "sm", "seat"))) for row in rows
            ]
    return found


GIB = 2**30
BASE = [entry([0, 1], tenant("a"), tenant("b", "60GiB"), tenant("pair", "10GiB", 40, gpus=2))]


@pytest.mark.host_python
@pytest.mark.core
def test_layout_with_tenants_is_applied_once(fleet):
    foretold = run(fleet, *BASE, check=True)
    assert files(fleet) == {}
    done = run(fleet, *BASE)
    assert done["changed"] and done["plan"] == foretold["plan"]
    assert done["plan"][2] == "vgpu a: add (8GiB and 30 %, fixed, by preload; no dmem here) on gpu 0"
    assert quotas(fleet) == {
        "a": [(0, 8 * GIB, 30, 0)],
        "b": [(0, 60 * GIB, 30, 1)],
        "pair": [(0, 10 * GIB, 40, 2), (1, 10 * GIB, 40, 0)],
    }
    assert "vgpu a (8GiB and 30 %" in done["diff"]["after"]
    assert [gpu["asked"] for gpu in done["gpus"]] == ["vgpu", "vgpu"]
    before = files(fleet)
    again = run(fleet, *BASE)
    assert not again["changed"]
    assert files(fleet) == before


@pytest.mark.host_python
@pytest.mark.core
def test_module_applies_and_removes_only_tenants(fleet):
    told = run(fleet, *BASE, module="vgpu_quota")
    assert [each["name"] for each in told["tenants"]] == ["a", "b", "pair"]
    assert told["tenants"][0]["gpus"][0]["used_bytes"] == 0
    assert fleet.module("gpu_info")["vgpu_tenants"] == told["tenants"]
    gone = run(fleet, module="vgpu_quota", state="absent", check=True)
    assert gone["plan"] == [
        "vgpu a: remove from gpu 0",
        "vgpu b: remove from gpu 0",
        "vgpu pair: remove from gpu 0 and gpu 1",
    ]
    assert files(fleet) != {}
    assert run(fleet, module="vgpu_quota", state="absent")["changed"]
    assert files(fleet) == {}
    assert not run(fleet, module="vgpu_quota", state="absent")["changed"]


def test_gpus_that_are_not_ready_are_skipped(fleet):
    run(fleet, {"gpus": [1], "sharing": "exclusive"})
    refused = run(fleet, entry([1], tenant("a")), module="vgpu_quota")
    assert "not ready for tenants (MIG off, compute mode exclusive_process)" in refused["msg"]
    daemons = run(fleet, entry([0], tenant("a"), provider="mps"), module="vgpu_quota")
    assert "Apply the whole layout (openfleet.gpu.layout)" in daemons["msg"]
    assert run(fleet, entry([1], tenant("a")))["changed"]


def test_without_a_driver_tenants_can_be_removed(fleet):
    run(fleet, *BASE)
    fleet.library = fleet.folder / "no-library"
    gone = run(fleet, module="vgpu_quota", state="absent")
    assert (gone["changed"], gone["driver_present"]) == (True, False)
    assert files(fleet) == {}


def test_without_the_library_tenants_are_refused(fleet):
    (fleet.folder / "root" / LIBRARY).unlink()
    refused = run(fleet, *BASE)
    assert "role openfleet.gpu.vgpu_limiter" in refused["msg"]
    assert files(fleet) == {}
    # A dry run continues, because in a real run the role would install the library first.
    (missing,) = run(fleet, *BASE, check=True)["missing"]
    assert "role openfleet.gpu.vgpu_limiter" in missing


def test_gpus_in_a_container_have_no_tenants_of_the_host(host):
    host.create(H100)
    refused = run(host, *BASE)
    assert "simulated for this process only" in refused["msg"]
    assert host.module("gpu_info")["vgpu_tenants"] == []


@pytest.mark.host_python
@pytest.mark.core
@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ([entry([0], tenant("a", "60GiB"), tenant("b", "30GiB"))], ["tenants[1]", "does not fit", "on gpu 0"]),
        ([entry([0], tenant("a", gpu="0000:ff:00.0"))], ["tenants[0].gpu", "not in its entry"]),
        ([entry([0], tenant("a_"))], ["tenants[0].name", "cannot end in _"]),
        ([entry([0], tenant("a")), entry([1], tenant("a"))], ["already named by gpu_layout[0]"]),
        ([entry([0], tenant("a")), entry(["all"], tenant("b"))], ["all selects every GPU"]),
        ([entry([0], tenant("a"), provider="dmem")], ["vgpu.provider", "Linux 6.14"]),
    ],
)
def test_impossible_tenants_are_refused_before_any_change(fleet, layout, words):
    for check in (True, False):
        refused = run(fleet, *layout, check=check)
        assert refused["failed"] and refused["cure"]
        assert all(word in refused["msg"] for word in words), refused["msg"]
    assert files(fleet) == {}


def test_quotas_of_running_tenants_change(fleet):
    run(fleet, *BASE)
    root = fleet.folder / "root"
    regions = {path: path.stat().st_ino for path in root.rglob("run/**/*") if path.is_file()}
    run(fleet, entry([0, 1], tenant("a", "20GiB", 20), tenant("b", "40GiB", 40), tenant("pair", "10GiB", 40, gpus=2)))
    assert quotas(fleet)["a"] == [(0, 20 * GIB, 20, 0)]
    assert {path: path.stat().st_ino for path in root.rglob("run/**/*") if path.is_file()} == regions


# --- from any kind of sharing to any other, in one run --------------------------------------------------------------

SHARINGS = {
    "vgpu": entry([0], tenant("a")),
    "other tenants": entry([0], tenant("b", "20GiB", 10, priority=1), policy="burst"),
    "shared": {"gpus": [0], "sharing": "shared"},
    "exclusive": {"gpus": [0], "sharing": "exclusive"},
    "mig": {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]},
}
PAIRS = [pair for pair in itertools.permutations(SHARINGS, 2) if {"vgpu", "other tenants"}.intersection(pair)]


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_any_sharing_follows_any_other_in_one_run(fleet, pair):
    first, then = (SHARINGS[name] for name in pair)
    run(fleet, first)
    done = run(fleet, then)
    assert not done.get("failed"), done.get("msg")
    assert sorted(quotas(fleet)) == [each["name"] for each in then.get("vgpu", {}).get("tenants", [])]
    assert (files(fleet) == {}) == ("vgpu" not in then)
    assert not run(fleet, then)["changed"]


# --- interrupted, failed, blocked and saved changes -----------------------------------------------------------------


def seen(host):
    return quotas(host), host.seen()


def shared_inodes(host):
    """Return the inodes of the files that tenants' processes map as shared memory."""
    return {str(path): path.stat().st_ino for path in (host.folder / "root/run").rglob("*.1")}


def test_failed_step_restores_tenants(fleet):
    run(fleet, entry([0, 1], tenant("a"), tenant("b", gpu=1)))
    before, there, inodes = files(fleet), seen(fleet), shared_inodes(fleet)
    assert len(inodes) == 4
    fleet.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--code", "UNKNOWN")
    failed = run(
        fleet, entry([0], tenant("a", "1GiB")), {"gpus": [1], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}
    )
    assert failed["failed"] and failed["outcome"] == "old"
    assert files(fleet) == before
    assert seen(fleet) == there
    # Running processes have these files open, and containers have them mounted.
    assert shared_inodes(fleet) == inodes


@pytest.mark.host_python
@pytest.mark.core
def test_unwritable_file_restores_tenants(fleet):
    run(fleet, entry([0], tenant("a"), tenant("b")))
    before = files(fleet)
    # A file blocks tenant c's folder. When this step fails, the run has already changed the tenants before c.
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/c").touch()
    failed = run(fleet, entry([0], tenant("a", "1GiB"), tenant("c")))
    assert failed["failed"] and failed["outcome"] == "old"
    quota = "30 %, fixed, by preload"
    changed = "vgpu a: change from 8GiB and %s to 1GiB and %s" % (quota, quota)
    assert failed["steps_done"] == [changed]
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/c").unlink()
    assert files(fleet) == before


@pytest.mark.host_python
@pytest.mark.core
def test_next_run_recovers_an_interrupted_one(fleet):
    run(fleet, entry([0, 1], tenant("a"), tenant("b", gpu=1)))
    before = files(fleet)
    fleet.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--code", "kill")
    then = [entry([0], tenant("a", "1GiB")), {"gpus": [1], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
    with pytest.raises(AssertionError, match="exit -9"):
        run(fleet, *then)
    assert files(fleet) == before, "a tenant is removed after all other changes"
    back = run(fleet, entry([0, 1], tenant("a"), tenant("b", gpu=1)))
    assert back["recovered"] == "old"
    assert files(fleet) == before
    with pytest.raises(AssertionError, match="exit -9"):
        fleet.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--code", "kill")
        run(fleet, *then)
    assert run(fleet, *then)["recovered"] == "old"
    assert quotas(fleet) == {"a": [(0, GIB, 30, 0)]}


def test_run_interrupted_between_tenants_is_completed(fleet):
    run(fleet, *BASE)
    after = [entry([0, 1], tenant("a", "4GiB"), tenant("c"), tenant("pair", "10GiB", 40, gpus=2))]
    run(fleet, *after)
    wanted = files(fleet)
    run(fleet, *BASE)
    # Restore the state that a kill leaves: the run's journal, and only some of the files.
    before = [json.loads(files(fleet)["etc/openfleet-gpu/vgpu/%s/tenant.json" % name]) for name in "ab"]
    journal = {
        "schema": 5,
        "run": {"pid": 1, "command": "x", "since": 0},
        "before": [],
        "after": [],
        "beside": {"vgpu": {"before": before, "comes": ["c"]}},
    }
    (fleet.folder / "state.d/journal.json").write_text(json.dumps(journal))
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/b/quota").unlink()
    done = run(fleet, *after)
    assert done["recovered"] == "new"
    assert files(fleet).keys() == wanted.keys()
    assert quotas(fleet)["a"] == [(0, 4 * GIB, 30, 0)]


def as_tenant(host, name):
    """Start one of this tenant's processes on GPU 0.

    The tenant is in the process's environment. Return when NVML lists the process.
    """
    command = ["env", "OPENFLEET_VGPU=" + name, "gpusim", "run", "--gpu", "0", "--memory", "1GiB", "--", "sleep", "300"]
    process = host.popen(command)
    wait_until(
        lambda: process.poll() is not None or json.loads(host.gpusim("show", "--json"))["processes"],
        "the process in NVML",
    )
    assert process.poll() is None, "gpusim run ended"
    return process


def test_working_tenant_is_moved_only_with_permission(fleet):
    run(fleet, entry([0], tenant("a")))
    before = files(fleet)
    moves = [entry([1], tenant("a")), {"gpus": [0], "sharing": "shared"}]
    process = as_tenant(fleet, "a")
    try:
        refused = run(fleet, *moves)
        assert re.search(
            r"vgpu a \(it would leave gpu 0 \(GPU-[0-9a-f]{8}\)\) is in use by pid %d\b" % process.pid, refused["msg"]
        )
        assert files(fleet) == before
        # The process does not block a change of the quota alone.
        assert run(fleet, entry([0], tenant("a", "1GiB")))["changed"]
        # With `force`, the run ends the process and applies the change.
        forced = run(fleet, *moves, on_busy="force", grace_period=10)
        assert str(process.pid) in forced["ended"][0]
        assert quotas(fleet) == {"a": [(1, 8 * GIB, 30, 0)]}
    finally:
        process.kill()
        process.wait()


def test_working_tenant_is_removed_or_renamed_only_with_permission(fleet):
    run(fleet, entry([0], tenant("a")))
    before = files(fleet)
    process = as_tenant(fleet, "a")
    try:
        for after in (entry([0], tenant("renamed")), {"gpus": [0], "sharing": "shared"}):
            refused = run(fleet, after)
            said = r"vgpu a \(it would be removed from gpu 0 \(GPU-[0-9a-f]{8}\)\) is in use by pid %d\b" % process.pid
            assert re.search(said, refused["msg"])
        assert files(fleet) == before
        gone = run(fleet, entry([0], tenant("renamed")), on_busy="force", grace_period=10)
        assert str(process.pid) in gone["ended"][0]
        assert set(quotas(fleet)) == {"renamed"}
    finally:
        process.kill()
        process.wait()


def test_waterline_and_latency_of_working_tenants_change(fleet):
    def colocated(latency, **more):
        tenants = [tenant("serve", latency="online"), tenant("train", latency=latency)]
        return entry([0], *tenants, policy="colocate", **more)

    def lines(name):
        return files(fleet)[f"etc/openfleet-gpu/vgpu/{name}/quota"].splitlines()

    run(fleet, colocated("offline"))
    process = as_tenant(fleet, "train")
    try:
        assert {"waterline 80", "priority 1"} <= set(lines("train"))
        changed = run(fleet, colocated("offline", waterline_percent=40))
        assert changed["changed"]
        assert any("vgpu train:" in step and "waterline 40 %" in step for step in changed["plan"])
        assert {"waterline 40", "priority 1"} <= set(lines("train"))
        assert "waterline 40" in lines("serve")
        run(fleet, colocated("online", waterline_percent=40))
        assert "priority 0" in lines("train")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_other_processes_do_not_block_tenants(fleet):
    run(fleet, entry([0], tenant("a")))
    process = as_tenant(fleet, "b")
    try:
        assert run(fleet, entry([1], tenant("a")), {"gpus": [0], "sharing": "shared"})["changed"]
    finally:
        process.kill()
        process.wait()


def test_saved_plan_is_applied_exactly_or_refused(fleet):
    run(fleet, entry([0, 1], tenant("a")))
    after = entry([0, 1], tenant("a", "4GiB"), tenant("b", "70GiB"))
    saved = run(fleet, after, check=True)["plan_data"]
    assert [step["step"] for step in saved["vgpu"]["steps"]] == ["ChangeTenant", "AddTenant"]
    run(fleet, entry([0, 1], tenant("a"), tenant("meanwhile")))
    refused = run(fleet, after, plan=saved)
    assert "the steps have changed" in refused["msg"] and "vgpu meanwhile: remove" in refused["msg"]
    run(fleet, entry([0, 1], tenant("a")))
    done = run(fleet, after, plan=saved)
    assert done["plan"] == [gpu["plan"] for gpu in saved["gpus"]] + saved["vgpu"]["plan"]
    assert not run(fleet, after, plan=saved)["changed"]
    other = run(fleet, entry([0, 1], tenant("a", "4GiB"), tenant("c")), plan=saved)
    assert "the steps have changed" in other["msg"]


# --- renamed tenants ------------------------------------------------------------------------------------------------


RENAME = entry([0], tenant("b", was="a"))


def gpu_target(host, number, compute_mode):
    """Return a GPU's entry in a journal."""
    uuid = json.loads(host.gpusim("show", "--json"))["gpus"][number]["uuid"]
    target = {"gpu_uuid": uuid, "where": "gpu_layout[1]", "sharing": "shared", "mig_enabled": False, "instances": []}
    return dict(target, compute_mode=compute_mode)


def regions(host):
    return [path.parent.name for path in (host.folder / "root/run").rglob("region.1")]


@pytest.mark.host_python
@pytest.mark.core
def test_running_tenant_is_renamed(fleet):
    run(fleet, entry([0], tenant("a")))
    inodes = shared_inodes(fleet)
    process = as_tenant(fleet, "a")
    try:
        before = files(fleet)
        foretold = run(fleet, RENAME, check=True)
        assert foretold["plan"][-1] == "vgpu b: rename tenant a to b on gpu 0"
        assert "vgpu b (8GiB and 30 %, fixed, by preload, also named a)" in foretold["diff"]["after"]
        assert files(fleet) == before
        done = run(fleet, RENAME)
        assert (done["changed"], done["plan"]) == (True, foretold["plan"])
        assert quotas(fleet) == {name: [(0, 8 * GIB, 30, 0)] for name in "ab"}
        (told,) = fleet.module("gpu_info")["vgpu_tenants"]
        assert (told["name"], told["aliases"]) == ("b", ["a"])
        stands = files(fleet)
        assert not run(fleet, RENAME)["changed"]
        # Processes that use the earlier name belong to the renamed tenant. So the renamed tenant cannot leave the GPU
        # either.
        refused = run(fleet, entry([1], tenant("b", was="a")), {"gpus": [0], "sharing": "shared"})
        assert re.search(r"vgpu b \(it would leave gpu 0 .*is in use by pid %d\b" % process.pid, refused["msg"])
        # Without `was`, the run keeps the earlier name while its processes run, and reports no change.
        for check in (True, False):
            kept = run(fleet, entry([0], tenant("b")), check=check)
            assert not kept["changed"]
            said = r"vgpu b: keep the name a until its processes end \((pid \d+, )*pid %d\b" % process.pid
            assert re.fullmatch(said + r".*\)", kept["plan"][-1])
        assert files(fleet) == stands
    finally:
        process.kill()
        process.wait()
    assert shared_inodes(fleet) == inodes
    wait_until(lambda: run(fleet, entry([0], tenant("b")), check=True)["changed"], "no process has the name")
    ended = run(fleet, entry([0], tenant("b")))
    assert ended["plan"][-1] == "vgpu b: end the name a on gpu 0"
    assert set(quotas(fleet)) == {"b"}
    assert shared_inodes(fleet) == inodes
    assert not run(fleet, entry([0], tenant("b")))["changed"]
    assert run(fleet, module="vgpu_quota", state="absent")["changed"]
    assert files(fleet) == {}


@pytest.mark.host_python
@pytest.mark.core
@pytest.mark.parametrize("was", [{"was": "b"}, {}], ids=["declared", "as before"])
def test_rename_is_rolled_back(fleet, was):
    run(fleet, entry([0], tenant("a")))
    before = files(fleet)
    run(fleet, RENAME)
    done = run(fleet, entry([0], tenant("a", **was)))
    assert done["plan"][-1].startswith("vgpu a: rename tenant b to a")
    run(fleet, entry([0], tenant("a")))
    assert files(fleet) == before


def test_renamed_tenant_is_restored_at_boot(fleet):
    """Restore the renamed tenant although /run is empty."""
    run(fleet, entry([0], tenant("a")))
    run(fleet, RENAME)
    before = files(fleet)
    shutil.rmtree(fleet.folder / "root/run")
    assert run(fleet, RENAME)["plan"][-1] == "vgpu b: rewrite its files on gpu 0"
    assert files(fleet).keys() == before.keys()
    assert regions(fleet) == ["a"]
    lines = (fleet.folder / "root/etc/tmpfiles.d/openfleet-vgpu.conf").read_text()
    assert "tenants/a/region.1" in lines and "tenants/b" not in lines


def test_failed_or_interrupted_rename_leaves_one_name_or_both(fleet):
    run(fleet, entry([0], tenant("a")), {"gpus": [1], "sharing": "shared"})
    before = files(fleet)
    then = [RENAME, {"gpus": [1], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
    fleet.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--code", "UNKNOWN")
    failed = run(fleet, *then)
    assert failed["failed"] and failed["outcome"] == "old"
    assert files(fleet) == before
    # The tenant's change fails halfway, because a file blocks its new folder.
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/b").touch()
    failed = run(fleet, *then)
    assert failed["failed"] and failed["outcome"] == "old"
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/b").unlink()
    assert files(fleet) == before
    # A kill ended the run, which left its journal and half of its files. Recovery restores the previous GPUs and
    # tenants.
    spec = json.loads(before["etc/openfleet-gpu/vgpu/a/tenant.json"])
    run(fleet, RENAME, {"gpus": [1], "sharing": "shared"})
    (fleet.folder / "root/etc/openfleet-gpu/vgpu/b/env").unlink()
    journal = {
        "schema": 5,
        "run": {"pid": 1, "command": "x", "since": 0},
        "before": [gpu_target(fleet, 1, "default")],
        "after": [gpu_target(fleet, 1, "exclusive_process")],
        "beside": {"vgpu": {"before": [spec], "comes": []}},
    }
    (fleet.folder / "state.d/journal.json").write_text(json.dumps(journal))
    done = run(fleet, entry([0], tenant("a")), {"gpus": [1], "sharing": "shared"})
    assert (done["recovered"], done["changed"]) == ("old", True)
    assert files(fleet) == before


def test_saved_plan_with_a_rename_is_applied_or_refused(fleet):
    run(fleet, entry([0], tenant("a")))
    saved = run(fleet, RENAME, check=True)["plan_data"]
    assert [(step["step"], step["name"]) for step in saved["vgpu"]["steps"]] == [("ChangeTenant", "b")]
    run(fleet, entry([0], tenant("c", was="a")))
    refused = run(fleet, RENAME, plan=saved)
    assert "the steps have changed: vgpu b: rename tenant c to b, end the name c" in refused["msg"], refused
    run(fleet, entry([0], tenant("a")))
    assert run(fleet, RENAME, plan=saved)["changed"]
    assert not run(fleet, RENAME, plan=saved)["changed"]


def test_separate_tenants_of_both_names_are_refused(fleet):
    run(fleet, entry([0], tenant("a"), tenant("b")))
    before = files(fleet)
    for check in (True, False):
        refused = run(fleet, RENAME, check=check)
        assert "gpu_layout[0].vgpu.tenants[0].was: the host has separate tenants a (gpu 0" in refused["msg"]
    assert files(fleet) == before


def test_applying_the_export_of_a_renamed_tenant_changes_nothing(fleet):
    run(fleet, entry([0], tenant("a")))
    run(fleet, RENAME)
    exported = fleet.module("layout_export")["gpu_layout"]
    (of_tenants,) = [part for part in exported if part["sharing"] == "vgpu"]
    assert of_tenants["vgpu"]["tenants"] == [tenant("b", was="a")]
    assert not run(fleet, *exported)["changed"]
