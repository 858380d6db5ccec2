# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Right-size a fleet from a recorded week, without disturbing workloads.

The tests run in order.
"""

from __future__ import annotations

import time

import pytest
import services
import yaml

#: Verdicts of the first audit, by service or container. All other devices are unused.
FIRST = {
    "chat": "oversized_memory",
    "search": "oversized_memory",
    "train": "right",
    "embed": "right",
    "rank": "right",
    "render": "saturated",
    "notebook": "held_without_process",
    "draft": "idle",
    "billing": "idle",
}
#: Verdicts of the second audit. chat and search have moved, and draft and the notebook's container have been stopped.
SECOND = {
    **dict.fromkeys(("chat", "search", "train", "embed", "rank"), "right"),
    "render": "saturated",
    "billing": "idle",
}
HOURS_A_MONTH = 730.5
H100, L40S = 2.5, 1.0


def place(finding):
    subject = finding["holding"]["subject"]
    return subject["gpu_uuid"], subject["mig_instance"]


def words(played):
    return {place(finding): finding["verdict"]["word"] for finding in played.report["findings"]}


def wanted(found, places, of):
    """Return the expected verdict of every place in the report."""
    return {**dict.fromkeys(found, "free"), **{places[name]: word for name, word in of.items()}}


@pytest.fixture(scope="session")
def where(fleet, first):
    """Return the places at the time of the first audit."""
    return dict(fleet.places)


@pytest.fixture(scope="session")
def of_first(first):
    return {place(finding): finding for finding in first.report["findings"]}


def test_first_audit_has_the_expected_findings(first, where):
    found = words(first)
    # Four H100 (three used, one unused), four halves of two other H100, and four L40S.
    assert len(found) == 4 + 4 + 4
    assert found == wanted(found, where, FIRST)
    # Ansible's YAML output folds long lines.
    told = " ".join(first.told.split())
    for counted in ("2 oversized memory", "2 idle", "1 held without process", "1 saturated", "3 free", "3 right"):
        assert counted in told


def test_audit_covers_the_week_without_notes(first):
    for finding in first.report["findings"]:
        # On a busy machine, the most recent samples may be some minutes old.
        assert finding["holding"]["memory"]["coverage_ratio"] > 0.99
    assert first.report["sources"]["missing"] == []


def test_audit_names_holders(of_first, where):
    for name in FIRST:
        (holder,) = of_first[where[name]]["holding"]["holders"]
        assert f"{name}.service" in holder["who"]


def test_audit_reports_costs(of_first, where):
    assert of_first[where["notebook"]]["verdict"]["waste_per_month"] == pytest.approx(L40S * HOURS_A_MONTH, abs=1)
    # chat needs at most an eighth of the compute, and a tenth of the memory including a reserve of 15 %.
    waste = of_first[where["chat"]]["verdict"]["waste_per_month"]
    assert 0.85 * H100 * HOURS_A_MONTH < waste < 0.92 * H100 * HOURS_A_MONTH


def test_scrapes_continue_recorded_series(first, monitor):
    """Check that scraped samples continue the recorded series.

    After five minutes the series have more samples.
    """
    deadline = time.monotonic() + 300
    while True:
        counts = [one.value for one in monitor.prometheus.query("count_over_time(gpu:info[5m])")]
        if min(counts) > 4:
            break
        assert time.monotonic() < deadline, counts
        time.sleep(0.5)
    assert {one.value for one in monitor.prometheus.query("count by (gpu_uuid, mig_instance) (gpu:info)")} == {1.0}


def test_proposal_moves_two_small_services_to_the_unused_gpu(listed, proposal):
    rows = {row["name"]: row for row in proposal.report["workloads"]}
    moved = {name: row for name, row in rows.items() if row["change"] in ("moved", "resized")}
    assert set(moved) == {"chat", "search"}
    # rightsize.yml counted the container without a program as a workload that may be stopped. By now, the container is
    # stopped.
    first = [row["name"] for row in listed.report["workloads"] if row["change"] == "left"]
    assert first == ["notebook"] and "notebook" not in rows
    for name, profile in (("chat", "1g.10gb"), ("search", "2g.20gb")):
        assert (moved[name]["then_host"], moved[name]["then_gpu_index"]) == ("hopper", 3)
        assert moved[name]["then"].startswith(profile + " at ")
    (host,) = proposal.report["hosts"]
    assert (host["host"], host["freed_gpus"], host["destroyed"], host["disturbs"]) == ("hopper", [0, 1], 0, [])
    # The new layout frees two GPUs, and uses one that was unused.
    # The monthly cost of a GPU is a whole number, as in the ledger.
    assert proposal.report["summary"]["saved_per_month"] == round(H100 * HOURS_A_MONTH)


def test_proposal_is_an_inventory_for_one_host(proposal, site):
    folder = site.folder / "rightsize" / "proposal"
    assert sorted(path.name for path in (folder / "host_vars").iterdir()) == ["hopper"]
    layout = yaml.safe_load((folder / "host_vars" / "hopper" / "gpu_layout.yml").read_text())["gpu_layout"]
    assert next(entry for entry in layout if 3 in entry["gpus"])["sharing"] == "mig"


def test_applying_the_proposal_disturbs_no_workload(applied):
    assert all(pid.isdigit() for pid in applied.before.values()), applied.before
    assert applied.after == applied.before
    assert "Applied: 2 created, 0 destroyed" in applied.told


def test_nvidia_smi_shows_the_applied_proposal(applied, fleet):
    gpus = services.gpus(fleet.hosts["hopper"])
    assert [gpu.mig_mode for gpu in gpus] == ["Disabled", "Disabled", "Disabled", "Enabled"]
    assert sorted(one.profile for one in gpus[3].instances.values()) == ["1g.10gb", "2g.20gb"]
    for gpu in services.gpus(fleet.hosts["slices"]):
        assert [one.profile for one in gpu.instances.values()] == ["3g.40gb", "3g.40gb"]


def test_second_audit_has_fewer_findings_and_no_new_ones(second, fleet, where):
    found = words(second)
    # The H100 that was unused has two instances now.
    assert len(found) == 3 + 2 + 4 + 4
    assert found == wanted(found, fleet.places, SECOND)
    gone = {(row["gpu_uuid"], row["mig_instance"]): row["word"] for row in map(subject_of, second.report["gone"])}
    assert gone == {where[name]: FIRST[name] for name in ("chat", "search", "notebook", "draft")}
    blamed = {
        place(one): one["state"] for one in second.report["findings"] if one["verdict"]["word"] not in ("right", "free")
    }
    # The proposal could not change the verdicts on render and billing, so they are the same as before.
    assert blamed == {where["render"]: "still", where["billing"]: "still"}


def subject_of(row):
    return {**row.get("holding", row).get("subject", row), "word": row.get("verdict", row).get("word")}


def test_audit_and_proposal_write_pages(second, site):
    for page in ("audit/audit.html", "rightsize/rightsize.html"):
        text = (site.folder / page).read_text()
        assert "hopper" in text and "<script" not in text
