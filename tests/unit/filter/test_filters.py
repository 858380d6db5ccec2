# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test filters that site.yml uses on the controller, with valid and invalid input."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.openfleet.gpu.plugins.filter.fleet_page import fleet_page
from ansible_collections.openfleet.gpu.plugins.filter.fleet_report import fleet_report
from ansible_collections.openfleet.gpu.plugins.filter.gpu_models import gpu_models
from ansible_collections.openfleet.gpu.plugins.filter.plan_without_driver import plan_without_driver
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.pci import nvidia_gpus

pytestmark = pytest.mark.core

SEVENTHS = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}]


def pci_tree(root, devices):
    for address, (vendor, pci_class, device) in devices.items():
        folder = root / address
        folder.mkdir()
        for name, value in (("vendor", vendor), ("class", pci_class), ("device", device)):
            (folder / name).write_text(value + "\n")
    return str(root)


def test_gpu_models_are_listed_in_index_order():
    groups = [{"model": "H100-80GB", "count": 2}, {"model": "L40S-48GB"}]
    assert gpu_models(groups) == ["H100-80GB", "H100-80GB", "L40S-48GB"]


def test_only_nvidia_gpus_are_found_on_the_bus(tmp_path):
    tree = pci_tree(
        tmp_path,
        {
            "0000:3b:00.0": ("0x10de", "0x030200", "0x2330"),
            "0000:1b:00.0": ("0x10de", "0x030000", "0x20b2"),
            "0000:05:00.0": ("0x10de", "0x068000", "0x22a3"),
            "0000:00:02.0": ("0x8086", "0x030000", "0x46a6"),
        },
    )
    assert nvidia_gpus(tree) == [
        {"address": "0000:1b:00.0", "device_id": "20b2"},
        {"address": "0000:3b:00.0", "device_id": "2330"},
    ]
    assert nvidia_gpus(str(tmp_path / "none")) == []


def test_a_layout_is_planned_on_expected_gpus():
    found = plan_without_driver(SEVENTHS, ["H100-80GB"])
    assert found["problems"] == []
    assert found["checked"]
    assert found["plan"][0].startswith("gpu 0: enable MIG mode, create 1g.10gb@0")


@pytest.mark.parametrize("expected", [[], ["A100-80GB"]])
def test_unknown_pci_addresses_are_problems_without_a_driver(expected):
    bus = [{"address": "0000:1b:00.0", "device_id": "20b2"}]
    layout = [
        {"gpus": ["0000:1B:00.0", "0000:3b:00.0"], "sharing": "shared"},
        {"gpus": ["5c:00.0"], "sharing": "exclusive"},
    ]
    assert plan_without_driver(layout, expected, bus)["problems"] == [
        "gpu_layout[0].gpus[1]: this host has no GPU at 0000:3b:00.0. The NVIDIA GPUs on the bus are at 0000:1b:00.0.",
        "gpu_layout[1].gpus[0]: this host has no GPU at 0000:5c:00.0. The NVIDIA GPUs on the bus are at 0000:1b:00.0.",
    ]
    # The number of GPUs is compared only with GPUs that the host has now. More may be added later.
    assert plan_without_driver(layout, ["A100-80GB"])["problems"] == []


def test_known_pci_address_has_a_plan_without_a_driver():
    bus = [{"address": "0000:1b:00.0", "device_id": "20b2"}, {"address": "0000:3b:00.0", "device_id": "20b2"}]
    layout = [{"gpus": ["0000:3b:00.0"], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}]}]
    (line,) = plan_without_driver(layout, [], bus)["plan"]
    assert line.startswith("gpu 1")


def test_gpus_on_the_bus_replace_expected_ones():
    found = plan_without_driver(SEVENTHS, [], [{"address": "0000:1b:00.0", "device_id": "20b2"}])
    assert found["checked"]
    assert found["problems"] == []


def test_board_on_the_bus_has_its_own_name():
    by_model = [{"gpus": [{"model": "A100 80GB PCIe"}], "sharing": "shared"}]
    assert plan_without_driver(by_model, [], [{"address": "0000:1b:00.0", "device_id": "20b5"}])["problems"] == []
    sxm = plan_without_driver(by_model, [], [{"address": "0000:1b:00.0", "device_id": "20b2"}])
    assert "no GPU of this host matches" in sxm["problems"][0]


def test_unknown_boards_leave_the_layout_unchecked_with_a_note():
    assert plan_without_driver(SEVENTHS, [], [{"address": "0000:1b:00.0", "device_id": "ffff"}])["checked"] is False
    assert plan_without_driver(SEVENTHS)["checked"] is False


def test_all_syntax_problems_and_the_first_misfit_are_returned():
    form = plan_without_driver([{"gpus": [0], "sharing": "nope"}, {"gpu": [1], "sharing": "shared"}])
    assert len(form["problems"]) >= 2
    assert "gpu_layout[0]" in form["problems"][0]
    fit = plan_without_driver([{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.5gb"}]}], ["H100-80GB"])
    assert "there is no profile 1g.5gb" in fit["problems"][0]
    model = plan_without_driver(SEVENTHS, ["H900"])
    assert "H900" in model["problems"][0]


def test_entries_by_uuid_wait_for_the_driver():
    by_uuid = [
        {"gpus": ["GPU-5c89d3fa-0000-4000-8000-000000000001"], "sharing": "mig", "mig": [{"profile": "9g.90gb"}]}
    ]
    assert plan_without_driver(by_uuid, ["H100-80GB"])["problems"] == []


def tenants(*quotas):
    return [{"gpus": [0], "sharing": "vgpu", "vgpu": {"provider": "dmem", "tenants": list(quotas)}}]


def test_tenants_are_packed_without_a_driver_too():
    a = {"name": "a", "memory": "60GiB", "sm_percent": 30}
    found = plan_without_driver(tenants(a), ["H100-80GB"])
    assert (found["problems"], found["plan"][-1]) == ([], "vgpu a: add (60GiB and 30 %)")
    assert "tenant b" in plan_without_driver(tenants(a, dict(a, name="b")), ["H100-80GB"])["problems"][0]
    # Without a driver, it is unknown which GPU has this address.
    pinned = tenants(a, dict(a, name="b", gpu="0000:3b:00.0"))
    assert plan_without_driver(pinned, ["H100-80GB"])["problems"] == []


def test_report_sums_are_correct():
    instance = {"profile": "1g.10gb", "placement": {"start": 0, "size": 1}, "mig_uuids": [None]}
    words = {"asked": "mig: 2x 1g.10gb", "before": "MIG off", "after": "MIG on"}
    gpu = {"index": 0, "name": "NVIDIA H100", **words, "instances": [instance, instance], "changed": True}
    report = fleet_report(
        {
            "a": {"gpus": [gpu, gpu], "counts": {"create": 3, "destroy": 1, "keep": 1, "gpus_changed": 2}},
            "b": {"gpus": [gpu], "counts": {"create": 0, "destroy": 0, "keep": 2, "gpus_changed": 0}},
            "c": None,
        }
    )
    assert report["totals"] == {
        "create": 3,
        "destroy": 1,
        "keep": 3,
        "gpus_changed": 2,
        "hosts": 3,
        "hosts_changed": 1,
        "hosts_left_out": 0,
        "gpus": 3,
        "instances": 6,
    }
    assert (
        report["summary"]
        == "3 GPUs on 3 hosts, 6 MIG instances: 3 created, 1 destroyed, 3 kept; 2 GPUs changed; 1 of 3 hosts changed"
    )
    dry = fleet_report({"a": {"gpus": [gpu], "counts": {"create": 3, "gpus_changed": 1}}}, planned=True)["summary"]
    assert dry == (
        "1 GPU on 1 host, 2 MIG instances now: 3 to create, 0 to destroy, 0 to keep; 1 GPU would change; "
        "1 of 1 host would change"
    )
    assert report["hosts"][2]["note"] == "nothing was applied on this host"


def test_dry_run_counts_changes_of_hosts_without_a_driver():
    new = {"driver_present": False, "msg": "No driver.", "forecast": plan_without_driver(SEVENTHS, ["H100-80GB"])}
    unknown = {"driver_present": False, "msg": "No driver.", "forecast": plan_without_driver(SEVENTHS)}
    report = fleet_report({"new": new, "unknown": unknown}, planned=True)
    assert report["summary"] == (
        "1 GPU on 2 hosts, 0 MIG instances now: 7 to create, 0 to destroy, 0 to keep; 1 GPU would change; "
        "1 of 2 hosts would change; 1 without a driver yet, planned from the model catalogue"
    )
    assert [host["note"] for host in report["hosts"]] == [
        "no NVIDIA driver yet; planned from the model catalogue",
        "No driver.",
    ]


def test_a_forecast_counts_gpus_with_daemons_or_tenants_as_changed():
    layout = [
        {"gpus": [0], "sharing": "mps", "mps": {"name": "a", "clients": 2, "active_thread_percentage": 50}},
        {"gpus": [1], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "b", "memory": "1GiB", "sm_percent": 9}]}},
        {"gpus": [2], "sharing": "shared"},
    ]
    found = plan_without_driver(layout, ["H100-80GB"] * 3)
    assert (found["gpus"], found["counts"]["gpus_changed"]) == (3, 2)


@pytest.mark.parametrize(("planned", "word"), [(True, "would change"), (False, "changed")])
def test_page_of_a_dry_run_shows_planned_changes(planned, word):
    words = {"asked": "shared", "before": "MIG on", "after": "MIG off"}
    gpu = {"index": 0, "name": "NVIDIA H100", **words, "instances": [], "changed": True}
    page = fleet_page(fleet_report({"a": {"gpus": [gpu, {**gpu, "changed": False}]}}, planned=planned), planned=planned)
    said = [each for each in (">changed<", ">would change<", ">unchanged<") if each in page]
    assert said == [">%s<" % word, ">unchanged<"]


def test_note_does_not_repeat_the_host():
    report = fleet_report({"a": {"failed": True, "msg": "a: gpu 3 is lost."}})
    assert report["hosts"][0]["note"] == "gpu 3 is lost."


def test_report_has_warnings_of_its_hosts():
    gpu = {"index": 0, "instances": [], "changed": False}
    hosts = fleet_report({"a": {"gpus": [gpu]}, "b": None}, warnings={"a": [], "b": ["the driver is old"]})["hosts"]
    assert [host["warnings"] for host in hosts] == [[], ["the driver is old"]]
    assert fleet_report({"a": {"gpus": [gpu]}})["hosts"][0]["warnings"] == []


def test_the_report_names_gpus_that_lost_their_entry():
    uuid = "GPU-5c89d3fa-0000-4000-8000-000000000001"
    kept = {
        "index": 1,
        "uuid": uuid,
        "name": "H100",
        "action": "keep",
        "text": "unmanaged, without an entry: keeps mps (a)",
    }
    report = fleet_report({"a": {"gpus": [], "unmanaged": [kept, dict(kept, index=2, action="release")]}, "b": None})
    assert [host["unmanaged"] for host in report["hosts"]] == [
        ["gpu 1 (GPU-5c89d3fa): unmanaged, without an entry: keeps mps (a)"],
        [],
    ]
    assert report["summary"].endswith("; 1 GPU unmanaged")
    assert "keeps mps (a)" in fleet_page(report)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (
            {"model": "H100-80GB", "count": 8},
            ["gpu_simulator_gpus is {", "not a list", "[{model: H100-80GB, count: 8}]"],
        ),
        (None, ["gpu_simulator_gpus is None", "not a list"]),
        (["H100-80GB"], ["gpu_simulator_gpus[0] is 'H100-80GB'", "Write for example {model: H100-80GB"]),
        ([{"model": "T4-16GB"}, {"count": 2}], ["gpu_simulator_gpus[1] has no model", "Write for example"]),
        ([{"modle": "T4-16GB"}], ["gpu_simulator_gpus[0] has the unknown key modle", "keys are model and count"]),
        (
            [{"model": "T4-16GB", "cuont": 2}],
            ["gpu_simulator_gpus[0] has the unknown key cuont", "keys are model and count"],
        ),
        ([{"model": ["T4-16GB"]}], ["gpu_simulator_gpus[0] has the model ['T4-16GB']", "not a name"]),
        ([{"model": "T4-16GB", "count": "x"}], ["gpu_simulator_gpus[0] has the count 'x'", "whole number"]),
        ([{"model": "T4-16GB", "count": 0}], ["gpu_simulator_gpus[0] has the count 0", "whole number from 1"]),
        ([{"model": "T4-16GB", "count": -1}], ["gpu_simulator_gpus[0] has the count -1", "whole number"]),
        ([{"model": "T4-16GB", "count": 1.5}], ["gpu_simulator_gpus[0] has the count 1.5", "whole number"]),
        ([{"model": "T4-16GB", "count": None}], ["gpu_simulator_gpus[0] has the count None", "whole number"]),
        ([{"model": "T4-16GB", "count": True}], ["gpu_simulator_gpus[0] has the count True", "whole number"]),
        ([{"model": "T4-16GB", "count": 33}], ["gpu_simulator_gpus[0] has the count 33", "from 1 to 32"]),
        ([{"model": "T4-16GB", "count": 17}] * 2, ["gpu_simulator_gpus has 34 GPUs", "host is 32"]),
        ([{"model": "T4-16GB", "count": 10**5000}], ["gpu_simulator_gpus[0] has the count a number of more than 20"]),
        ([{"model": "T4-16GB", "count": "²"}], ["gpu_simulator_gpus[0] has the count '²'"]),
    ],
)
def test_invalid_simulated_gpus_are_refused_with_place_and_fix(groups, words):
    with pytest.raises(AnsibleFilterError) as refused:
        gpu_models(groups)
    for word in words:
        assert word in str(refused.value)


def test_count_can_be_text_from_templates():
    assert gpu_models([{"model": "T4-16GB", "count": "2"}]) == ["T4-16GB"] * 2
