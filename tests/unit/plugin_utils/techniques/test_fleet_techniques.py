# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that controller code uses the registry and names no technique itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.types import WITHOUT_PART
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import FORMS, SHARINGS
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.service_views import SERVICE_VIEWS
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.registry import DIVIDERS
from ansible_collections.openfleet.gpu.plugins.plugin_utils import host_results
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import model as packing
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import model as rightsize
from ansible_collections.openfleet.gpu.plugins.plugin_utils.techniques.protocol import FleetTechnique, Size
from ansible_collections.openfleet.gpu.plugins.plugin_utils.techniques.registry import (
    PROPOSED,
    TECHNIQUES,
    technique_of,
    tenants_of,
)

pytestmark = pytest.mark.core

UTILS = Path(__file__).resolve().parents[4] / "plugins/plugin_utils"
KEYS = [technique.key for technique in TECHNIQUES]
#: These files belong to the techniques.
OWN = {"techniques/registry.py", *("techniques/%s.py" % key for key in KEYS)}
#: These other files may name a technique, for the given reasons.
EXCEPTIONS = {
    "schedulers/nvidia_device_plugin/offer.py": "the plugin's own settings and folder for MPS",
    "schedulers/kubernetes/hami_core.py": "HAMi-core enforces the quotas of vGPU tenants, so it reads all their settings",
    "schedulers/slurm/gres.py": "Slurm's names of its resources",
    "schedulers/volcano_vgpu/backend.py": "Volcano's names of its resources",
}
MOST_FILES = 8


def named(text: str) -> set[str]:
    """Return the techniques that a file names in code, comments and docstrings.

    A key is a whole word, or the first part of a name, as in `vgpu_of` and `mps_daemons`. Names of the role vgpu_limiter, of
    pages and of Slurm's resource gres/mps are left out.
    """
    text = re.sub(r"vgpu_limiter\w*|docs/[\w-]+\.md|\bgres/mps\b", "", text)
    return {key for key in KEYS if re.search(r"(?<![A-Za-z0-9_])_*%s(?![A-Za-z0-9])" % key, text)}


def test_only_the_files_of_a_technique_name_it():
    found = {}
    for file in sorted(file for file in UTILS.rglob("*") if file.suffix in (".py", ".j2")):
        path = str(file.relative_to(UTILS))
        names = named(file.read_text(encoding="utf-8"))
        if names and path not in OWN:
            found[path] = names
    assert {path: names for path, names in found.items() if path not in EXCEPTIONS} == {}
    assert sorted(found) == sorted(EXCEPTIONS), "an exception is no longer needed"
    assert len(OWN) + len(EXCEPTIONS) <= MOST_FILES


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('if entry.sharing == "mps":', {"mps"}),
        ("from ..techniques.vgpu.part import vgpu_of", {"vgpu"}),
        ('state.get("mps_daemons")', {"mps"}),
        ('"""Decide about time_slicing."""', {"time_slicing"}),
        ("# vgpu: the quota", {"vgpu"}),
        ("def _vgpu(standing):", {"vgpu"}),
        ("json.dumps(value)", set()),
        ("from .volcano_vgpu import backend", set()),
        ("gres/mps and a TaskProlog (docs/mps.md)", set()),
        ('"vgpu_limiter_services"', set()),
    ],
)
def test_each_way_to_name_a_technique_is_detected(text, names):
    assert named(text) == names


def test_each_technique_of_hosts_has_a_file_here():
    assert sorted([*KEYS, *DIVIDERS]) == sorted(form.key for form in FORMS)
    assert [technique_of(key) for key in KEYS] == list(TECHNIQUES)
    assert all(technique_of(word) is None for word in (*WITHOUT_PART, *DIVIDERS, "unlisted", "", None))
    assert all(technique.title for technique in TECHNIQUES)


def test_rows_have_the_names_of_return_values():
    assert {each.key: each.rows for each in TECHNIQUES if each.rows} == {each.key: each.name for each in SERVICE_VIEWS}


def test_kinds_of_sharing_are_those_of_the_registry():
    assert ("whole", "mig", *(technique.key for technique in PROPOSED)) == packing.KINDS
    assert sorted([*rightsize.MODES, "shared"]) == sorted(SHARINGS)


def test_histories_of_tenants_are_separate_and_those_of_other_techniques_are_not():
    for technique in TECHNIQUES:
        assert technique.mixes_histories is not technique.has_tenants


def test_tenants_come_from_the_rows_of_their_technique():
    tenants = [{"name": "a"}, {"name": "b"}]
    (technique,) = (each for each in TECHNIQUES if each.has_tenants)
    state = {each.rows: [{"name": "daemon"}] for each in TECHNIQUES if each.rows}
    assert list(tenants_of({**state, technique.rows: tenants})) == [(technique, row) for row in tenants]
    assert list(tenants_of({})) == []


def test_a_row_without_a_needed_value_is_refused():
    gpu = "GPU-0c5b2b8e-2f0c-5a50-8f34-8d2a3a8b6f11"
    for technique in (each for each in TECHNIQUES if each.row_needs):
        row = {"gpus": [{"uuid": gpu}]}
        with pytest.raises(host_results.HostValueError) as caught:
            host_results.gpu_info("h", {"gpus": [], technique.rows: [row]}, tenants_whole=True)
        assert "%s[0].%s" % (technique.rows, technique.row_needs[0]) in str(caught.value)


def test_the_defaults_propose_and_offer_nothing():
    class Plain(FleetTechnique):
        key = title = "plain"

    plain = Plain()
    assert (plain.proposed, plain.has_tenants, plain.mixes_histories) == (False, False, True)
    assert (plain.access(None), plain.selectors(None), plain.serves({}, "GPU-1")) == (None, (), "")
    assert not any(
        plain.suits(isolation, latency) for isolation in rightsize.ISOLATIONS for latency in rightsize.LATENCIES
    )


@pytest.mark.parametrize("technique", PROPOSED, ids=lambda technique: technique.key)
def test_the_planner_of_a_technique_holds_what_fits_and_nothing_more(technique):
    gpu = Size(40960, 100)
    assert technique.holds(gpu, [Size(20480, 50)] * 2)
    assert not technique.holds(gpu, [Size(20480, 50), Size(20481, 50)])
    assert not technique.holds(gpu, [Size(20480, 50), Size(20480, 51)])


@pytest.mark.parametrize("isolation", rightsize.ISOLATIONS)
@pytest.mark.parametrize("latency", rightsize.LATENCIES)
def test_at_most_one_technique_suits_a_workload(isolation, latency):
    suited = [technique.key for technique in PROPOSED if technique.suits(isolation, latency)]
    assert len(suited) == (0 if isolation == "hardware" else 1)
