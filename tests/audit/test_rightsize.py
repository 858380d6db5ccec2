# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks/rightsize.yml on made-up hosts with a real Prometheus.

The planner must accept the proposal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import host_of
from tests.audit.fleet_history import AT_REST, CLEAR, NOBODY, Device, device, prometheus, steady, until, use
from tests.audit.rightsize_hosts import gpu, state

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "gpu_layout.schema.json").read_text()))
HOURS = 96
ENTRY = {"entry": "gpu_layout[0]"}


def of_leases(name, course, **labels):
    return "gpu:lease_" + name, {**ENTRY, **labels}, course


#: Both GPUs of a host are for leases. Two exporters report alice's instance. Her leases end after two days, and bob's
#: stay.
LEASES = (
    *(of_leases("pool_gpus", steady(1), gpu_uuid="GPU-leases-%d" % number) for number in (0, 1)),
    *(of_leases("gpus", until(48, steady(1.5)), account="alice", job=job) for job in ("a", "b")),
    of_leases("gpus", steady(0.25), account="bob"),
    of_leases("waiting_gpus", lambda hour: 1.0 if 24 <= hour < 36 else 0.0, account="bob"),
)
HISTORY = [
    device("leases", 0, NOBODY),
    Device("leases", 1, series=NOBODY, labelled=CLEAR, of_host=LEASES),
    # This host has two small services, an idle notebook server, a training that uses its GPU, and a free GPU.
    device("h100", 0, use(8, 0.05)),
    device("h100", 1, use(15, 0.2)),
    device("h100", 2),
    device("h100", 3, AT_REST),
    Device("h100", 4, series=NOBODY, labelled=CLEAR),
    # A host whose cards have no MIG. The inventory marks some services as trusting each other, and one service as not.
    device("l40s", 0, use(8, 0.05, 48)),
    device("l40s", 1, use(8, 0.3, 48)),
    device("l40s", 2, use(8, 0.05, 48)),
    # Oversized instances, each on a separate GPU, and a GPU without a history.
    Device("mig", 0, series=NOBODY, labelled=CLEAR),
    device("mig", 0, use(6, 0.1, 40), "1", "3g.40gb"),
    Device("mig", 1, series=NOBODY, labelled=CLEAR),
    device("mig", 1, use(6, 0.1, 40), "1", "4g.40gb"),
]
STATES = {
    # A lease's instance is not drift.
    "leases": state(
        gpu("leases", 0, "H100-80GB", instances=[(1, "3g.40gb", 4, "bob.service")]), gpu("leases", 1, "H100-80GB")
    ),
    "h100": state(
        gpu("h100", 0, "H100-80GB", "chat.service"),
        gpu("h100", 1, "H100-80GB", "search.service"),
        gpu("h100", 2, "H100-80GB", "train.service"),
        gpu("h100", 3, "H100-80GB", "jupyter.service"),
        gpu("h100", 4, "H100-80GB"),
    ),
    "l40s": state(
        gpu("l40s", 0, "L40S-48GB", "batch-a.service"),
        gpu("l40s", 1, "L40S-48GB", "batch-b.service"),
        gpu("l40s", 2, "L40S-48GB", "other.service"),
    ),
    "mig": state(
        gpu("mig", 0, "H100-80GB", instances=[(1, "3g.40gb", 4, "embed.service")]),
        gpu("mig", 1, "H100-80GB", instances=[(1, "4g.40gb", 0, "rank.service")]),
        gpu("mig", 2, "H100-80GB", "new.service"),
    ),
}
LAYOUTS = {
    "leases": [
        {
            "gpus": [0, 1],
            "sharing": "mig",
            "mig": [],
            "leases": {"by": "host", "groups": ["ml"], "profiles": ["3g.40gb"]},
        }
    ],
    "h100": [{"gpus": "all", "sharing": "shared"}],
    "mig": [
        {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]},
        {"gpus": [1], "sharing": "mig", "mig": [{"profile": "4g.40gb"}]},
        {"gpus": [2], "sharing": "exclusive"},
    ],
}
WORKLOADS = {"l40s": [{"match": "batch-*", "isolation": "none", "latency": "batch"}]}


def run(tool, *arguments, home):
    """Run one of Ansible's programs."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(home),
        "NO_COLOR": "1",
    }
    command = [str(Path(sys.executable).parent / tool), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rightsize")


@pytest.fixture(scope="module")
def inventory(folder):
    """Return an inventory of hosts with known state, as the first play registers it."""
    hosts = {
        name: {
            "gpu_rightsize__host": found,
            **({"gpu_layout": LAYOUTS[name]} if name in LAYOUTS else {}),
            **({"gpu_rightsize_workloads": WORKLOADS[name]} if name in WORKLOADS else {}),
        }
        for name, found in STATES.items()
    }
    hosts["gone"] = {}
    path = folder / "inventory.yml"
    path.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def played(folder, inventory):
    """Return the playbook's output.

    Its files are in DIRECTORY/out.
    """
    with prometheus(HISTORY, HOURS, folder) as url:
        settings = {
            "gpu_rightsize_hosts": "none",
            "gpu_rightsize_prometheus": {"url": url},
            "gpu_rightsize_window": "%dh" % (HOURS - 1),
            "gpu_rightsize_dir": str(folder / "out"),
            "gpu_rightsize_prices": [{"model": "H100*", "price": 2.0}, {"model": "*", "price": 1.0}],
            "gpu_rightsize_currency": "EUR",
            # The history has four days.
            "gpu_rightsize_thresholds": {"idle_hours": 24, "new_holder_hours": 0},
        }
        arguments = ["-i", inventory, "playbooks/rightsize.yml", "-e", json.dumps(settings)]
        done = run("ansible-playbook", *arguments, home=folder / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def proposal(played, folder):
    return json.loads((folder / "out" / "rightsize.json").read_text())


@pytest.fixture(scope="module")
def workloads(proposal):
    return {one["name"]: one for one in proposal["workloads"]}


@pytest.fixture(scope="module")
def layouts(played, folder, inventory):
    """Return each host's layout as site.yml reads it with the proposal."""
    arguments = ["-i", inventory, "-i", folder / "out" / "proposal", "--list"]
    done = run("ansible-inventory", *arguments, home=folder / "home")
    assert done.returncode == 0, done.stderr
    # Ansible accepts each file of the proposal without a warning.
    assert "WARNING" not in done.stderr
    found = json.loads(done.stdout)["_meta"]["hostvars"]
    return {host: found[host].get("gpu_layout") for host in STATES}


def test_small_services_go_onto_the_gpu_that_nobody_has(workloads, layouts):
    for name, profile in (("chat", "1g.20gb"), ("search", "2g.20gb")):
        one = workloads[name]
        assert (one["change"], one["then_host"], one["then_gpu_index"]) == ("moved", "h100", 4)
        assert one["then"].startswith(profile) and one["mode"] == "mig"
    assert workloads["train"]["change"] == "stays"
    # An idle workload does not show what it needs when it works.
    assert workloads["jupyter"]["change"] == "stays"
    assert workloads["jupyter"]["reason"] == "too little work seen: 0 cycles of work, fewer than 20"
    # The proposal keeps the inventory's settings for the other GPUs.
    shared = next(entry for entry in layouts["h100"] if entry["sharing"] == "shared")
    assert shared["gpus"] == [0, 1, 2, 3]


def test_only_those_share_without_isolation_of_which_the_inventory_says_so(workloads, layouts):
    (entry,) = layouts["l40s"]
    assert entry["sharing"] == "time_slicing" and entry["time_slicing"]["replicas"] == 2
    assert workloads["other"]["change"] == "stays" and "no MIG" in workloads["other"]["reason"]
    assert "a fault of one workload can end all" in " ".join(
        workloads["batch-a"]["risks"] + workloads["batch-b"]["risks"]
    )


def test_one_of_two_instances_makes_room_for_the_other(proposal, workloads, layouts):
    moves = [workloads[name]["change"] for name in ("embed", "rank")]
    assert sorted(moves) in (["moved", "stays"], ["moved", "resized"])
    (host,) = [one for one in proposal["hosts"] if one["host"] == "mig"]
    assert len(host["freed_gpus"]) == 1
    assert {"gpus": [2], "sharing": "exclusive"} in layouts["mig"]


def test_what_is_not_known_stays_as_it_is_and_is_said(proposal, workloads):
    assert workloads["new"]["change"] == "left" and "too little data" in workloads["new"]["reason"]
    assert any("1 of 5 hosts did not answer (gone)" in note for note in proposal["notes"])


def test_pool_of_leases_grows_by_what_was_leased_and_waited(proposal, workloads, folder):
    (pool,) = proposal["lease_pools"]
    assert (pool["host"], pool["entry"], pool["gpus"], pool["offered_gpus"]) == ("leases", "gpu_layout[0]", 2, 2.0)
    # While bob waited for 1 GPU, alice had 1.5 GPUs and bob 0.25.
    assert (pool["needed_gpus"], pool["proposed_gpus"]) == (2.75, 3)
    assert (pool["leased_max_gpus"], pool["waiting_max_gpus"], pool["free_min_gpus"]) == (1.75, 1.0, 0.25)
    assert 11.5 <= pool["waiting_hours"] <= 12.5
    reviewed = yaml.safe_load((folder / "out" / "rightsize.yml").read_text())["lease_pools"]
    assert [(each["entry"], each["change"]) for each in reviewed] == [("leases gpu_layout[0]", "grow from 2 to 3 GPUs")]
    assert "grow from 2 to 3 GPUs" in (folder / "out" / "rightsize.html").read_text()
    # The GPUs themselves keep their layout.
    assert "leases" not in [host["host"] for host in proposal["hosts"]]
    assert [one["change"] for one in workloads.values() if one["host"] == "leases"] == ["left"]


def test_each_layout_is_one_and_the_planner_takes_it(layouts):
    for host, layout in layouts.items():
        SCHEMA.validate({"gpu_layout": layout})
        gpus = host_of(host, STATES[host]).gpus
        parsed = parse_layout(layout)
        plan = planner.plan(gpus, targets(parsed, gpus))
        # If a host has a free GPU, the new layout disturbs none of the host's workloads. Each workload can move later.
        if host == "h100":
            assert plan.changes and not plan.disturbs


def test_the_plan_shown_is_the_planner_s(proposal, layouts):
    for change in proposal["hosts"]:
        gpus = host_of(change["host"], STATES[change["host"]]).gpus
        plan = planner.plan(gpus, targets(parse_layout(layouts[change["host"]]), gpus))
        assert change["plan"][: len(plan.gpus)] == plan.lines()
        assert change["destroyed"] == plan.counts()["destroy"]
        assert [found["what"] for found in change["disturbs"]] == [found.what for found in plan.disturbs]


def test_what_is_saved(proposal, played):
    sums = proposal["summary"]
    # One of two GPUs with small services becomes free, and so does one of two L40S and one of two GPUs with instances.
    assert (sums["gpus_used_today"], sums["gpus_used_then"]) == (11, 8)
    # A GPU's monthly cost is a whole number, as in the ledger.
    assert sums["saved_per_month"] == sum(round(price * 730.5) for price in (2.0, 1.0, 2.0))
    assert "8 GPUs instead of 11" in played


def test_the_proposal_promises_nothing_from_a_small_fleet(proposal, played, folder):
    assert "are too few to learn a margin for the confidence 0.99" in proposal["promise"]
    assert (
        "At most 1 of 100 plans like this will see a workload exceed the memory of a time-sliced" in proposal["promise"]
    )
    assert yaml.safe_load((folder / "out" / "rightsize.yml").read_text())["promise"] == proposal["promise"]
    assert proposal["promise"] in (folder / "out" / "rightsize.html").read_text()
    # Ansible breaks long lines.
    assert proposal["promise"] in " ".join(played.split())


def test_what_can_be_reclaimed_is_listed_and_nothing_is_stopped(proposal, played, folder):
    (one,) = proposal["reclaim"]
    assert (one["host"], one["kind"], one["name"], one["spared"]) == ("h100", "unit", "jupyter.service", "")
    assert "jupyter.service, idle for at least" in played
    assert not (folder / "out" / "reclaim.log").exists()


def test_the_overlay_says_what_it_would_cause(folder):
    text = (folder / "out" / "proposal" / "host_vars" / "h100" / "gpu_layout.yml").read_text()
    assert list(yaml.safe_load(text)) == ["gpu_layout"] and "rightsize.yml" in text
    reviewed = yaml.safe_load((folder / "out" / "rightsize.yml").read_text())["hosts"]["h100"]
    assert reviewed["gpu_layout"] == yaml.safe_load(text)["gpu_layout"]
    assert any(line.startswith("gpu 4: enable MIG mode") for line in reviewed["plan"])


def test_the_page_stands_alone(folder):
    page = (folder / "out" / "rightsize.html").read_text()
    assert "chat" in page and "<script" not in page
    for word in ("http-equiv", "src=", "@import", "url("):
        assert page.count(word) == (1 if word == "http-equiv" else 0)
