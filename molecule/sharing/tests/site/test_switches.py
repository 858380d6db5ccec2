# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change between techniques on one GPU in a single run.

NVIDIA's programs verify the result. The thorough run tests every pair.
"""

from __future__ import annotations

import json

import pytest

from tests.lab.lab_fixtures import changed_tasks
from tests.thorough import THOROUGH

QUARTERS = {"clients": 4, "active_thread_percentage": 25}
TENANTS = [{"name": "notebook-%s" % name, "memory": "8GiB", "sm_percent": 30} for name in "ab"]
#: Tasks of site.yml that change something if another layout is requested.
APPLIED = {"openfleet.gpu.gpu_layout : " + task for task in ("Apply the layout", "Install the boot service")}
#: The layout entry of each technique, and the expected state of the GPU and its daemons.
TECHNIQUES = {
    "exclusive": ({"sharing": "exclusive"}, ("Exclusive_Process", [], "Default", {})),
    "shared": ({"sharing": "shared"}, ("Default", [], "Default", {})),
    "mig": (
        {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
        (None, ["1g.10gb", "1g.10gb", "3g.40gb"], "Default", {}),
    ),
    "mps": (
        {"sharing": "mps", "mps": dict(QUARTERS, name="whole", pinned_memory_limit="18GiB")},
        ("Exclusive_Process", [], "Default", {"whole": None}),
    ),
    "time_slicing": (
        {"sharing": "time_slicing", "time_slicing": {"slice": "medium", "replicas": 2}},
        ("Default", [], "Medium", {}),
    ),
    "mps in mig": (
        {"sharing": "mig", "mig": [{"profile": "3g.40gb", "mps": dict(QUARTERS, name="part")}, {"profile": "2g.20gb"}]},
        (None, ["2g.20gb", "3g.40gb"], "Default", {"part": "3g.40gb"}),
    ),
    "tenants of mps": (
        {"sharing": "vgpu", "vgpu": {"provider": "mps", "tenants": TENANTS}},
        ("Default", [], "Default", {"vgpu-UUID": None}),
    ),
}


def tour(names):
    """Return a closed path that contains every ordered pair of names once.

    Hierholzer's algorithm finds the path.
    """
    left = {name: [other for other in names if other != name] for name in names}
    way, stack = [], [names[0]]
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            way.append(stack.pop())
    return way[::-1]


def every_switch():
    """Return the techniques in order.

    The usual run goes through them and back. The thorough run goes through every ordered pair.
    """
    names = list(TECHNIQUES)
    if not THOROUGH:
        return [*names, *names[-2:0:-1]]
    way = tour(names)
    assert len(set(zip(way, way[1:]))) == len(way) - 1 == len(names) * (len(names) - 1)
    return way


def entry(name):
    return dict(TECHNIQUES[name][0], gpus=[1])


def check(host, name):
    mode, instances, time_slice, daemons = TECHNIQUES[name][1]
    gpu = host.read()[1]
    seen = host.told_of(gpu)
    assert (seen["compute_mode"], sorted(seen["instances"]), seen["time_slice"]) == (mode, instances, time_slice)
    assert seen["mig"] == (mode is None)
    # The other GPU's daemon keeps running.
    running = {d: seen.devices for d, seen in host.daemons().items() if d != "small"}
    named = {d.replace("UUID", gpu.uuid[len("GPU-") :]): profile for d, profile in daemons.items()}
    assert running == {d: [host.device_of(gpu, profile)] for d, profile in named.items()}
    tenants = sorted(tenant["name"] for tenant in entry(name).get("vgpu", {}).get("tenants", []))
    there = host.ask("ls /etc/openfleet-gpu/vgpu /run/openfleet-gpu/vgpu/tenants /etc/cdi 2>/dev/null || true")
    assert sorted(set(there.split()).intersection(tenant["name"] for tenant in TENANTS)) == tenants
    devices = [word for word in there.split() if word.startswith("openfleet-vgpu-")]
    assert devices == ["openfleet-vgpu-%s.json" % tenant for tenant in tenants]


def test_every_switch_takes_one_run(hopper):
    small = hopper.daemons()["small"].pid
    reached = set()
    before = "the inventory's"
    for name in every_switch():
        done = hopper.apply(entry(name))
        assert "error" not in done, (before, name, done)
        assert done["changed"], (before, name)
        check(hopper, name)
        if THOROUGH or name not in reached:
            assert hopper.nothing_to_do(entry(name)), (before, name)
        reached.add(name)
        before = name
    assert reached == set(TECHNIQUES)
    assert hopper.daemons()["small"].pid == small


def test_one_daemon_per_gpu_or_one_for_all(ada):
    both = {"gpus": "all", "sharing": "mps", "mps": dict(QUARTERS, name="pair")}
    ada.apply(both)
    uuids = [ada.device(0), ada.device(1)]
    assert {name: d.devices for name, d in ada.daemons().items()} == {
        "pair-gpu0": uuids[:1],
        "pair-gpu1": uuids[1:],
    }
    together = dict(both, mps=dict(both["mps"], daemon_per="entry"))
    done = ada.apply(together)
    assert "error" not in done, done
    assert {name: d.devices for name, d in ada.daemons().items()} == {"pair": uuids}


def test_new_limits_reach_a_running_daemon(hopper):
    before = hopper.daemons()["inference"]
    more = {"gpus": [1], "sharing": "mps", "mps": dict(QUARTERS, name="inference", pinned_memory_limit="16GiB")}
    more["mps"]["active_thread_percentage"] = 20
    done = hopper.apply(more)
    assert done["plan"][1] == "mps inference: change to 4 clients of 20 % and 16GiB on gpu 1"
    now = hopper.daemons()["inference"]
    assert (now.pid, now.percentage) == (before.pid, 20)
    assert now.limits != before.limits


# The test above makes the same change with gpu-layout. The scenario default checks that a second run of site.yml
# changes nothing else.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mig", "shared"])
def test_site_yml_does_only_what_it_planned(hopper, ada, inventory_layout, tmp_path, name):
    """Check a second run of site.yml.

    On this host and on the other host, nothing else may change.
    """
    layout = [inventory_layout("hopper")[0], entry(name)]
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "hopper.json").write_text(json.dumps({"gpu_layout": layout}))
    (tmp_path / "hosts.json").write_text(json.dumps({"gpu_hosts": {"hosts": {"hopper": {}}}}))
    before = ada.time_slices()
    done = hopper.play("site.yml", "--inventory", str(tmp_path), limit=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (
        "mps inference: stop on gpu 1" in done.stdout
        or "from MIG off, compute mode exclusive_process, MPS inference" in done.stdout
    )
    check(hopper, name)
    assert changed_tasks(done.stdout) == {(task, "hopper") for task in APPLIED}
    assert ada.time_slices() == before
