# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter kubernetes_mapping: input and result.

The examples of docs/kubernetes-mapping.md are checked too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from tests.audit.rightsize_hosts import gpu, state

pytestmark = pytest.mark.core

DOCUMENT = (Path(__file__).parents[3] / "docs" / "kubernetes-mapping.md").read_text(encoding="utf-8")
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
EMPTY = {"resources": {}, "config": {}, "labels": {}, "config_name": "", "plan": []}


def blocks(language):
    """Return the code blocks that are not part of numbered steps."""
    return re.findall(r"^```%s\n(.*?)^```$" % language, DOCUMENT, flags=re.MULTILINE | re.DOTALL)


def test_documented_example_has_its_shown_result():
    (play,) = next(found for found in map(yaml.safe_load, blocks("yaml")) if isinstance(found, list))
    shown, config, refusal = blocks("text")
    layout = play["vars"]["gpu_layout"]
    found = kubernetes_mapping(layout, "nvidia_device_plugin", expected_gpus=["H100-80GB"] * 4, node="h100-01")
    assert found["problems"] == []
    assert found["plan"] == shown.splitlines()
    assert found["config"] == yaml.safe_load(config)
    mps = {"name": "inference", "clients": 4, "active_thread_percentage": 25}
    refused = kubernetes_mapping(
        [*MIG, {"gpus": [2], "sharing": "mps", "mps": mps}], "nvidia_device_plugin", expected_gpus=["H100-80GB"] * 4
    )
    assert refusal.strip() in refused["problems"]


def test_the_answer_is_plain_data():
    found = kubernetes_mapping(MIG, "nvidia_dra", expected_gpus=["H100-80GB"])
    assert yaml.safe_load(yaml.safe_dump(found)) == found


def test_gpus_are_from_the_host():
    host = state(gpu("a", 0, "H100-80GB"), gpu("a", 1, "H100-80GB", instances=[(1, "2g.20gb", 0, None)]))
    found = kubernetes_mapping(MIG, "nvidia_device_plugin", state=host, node="h100-01")
    assert found["plan"][0] == "node h100-01: nvidia.com/mig-3g.40gb 1, nvidia.com/mig-2g.20gb 1"
    claim = kubernetes_mapping(MIG, "nvidia_dra", state=host)["requests"][0]["claim"]
    assert host["gpus"][0]["uuid"] in str(claim)


def test_driver_takes_precedence_over_expected_gpus():
    one = state(gpu("a", 0, "H100-80GB"))
    found = kubernetes_mapping(MIG, "nvidia_device_plugin", state=one, expected_gpus=["H100-80GB"] * 3)
    assert found["resources"] == {"nvidia.com/mig-3g.40gb": 1}


def test_gpus_on_the_bus_replace_expected_ones():
    absent = {"driver_present": False, "gpus": []}
    found = kubernetes_mapping(MIG, "nvidia_device_plugin", state=absent, pci_gpus=[{"device_id": "20b2"}] * 2)
    assert found["checked"]
    assert found["resources"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize(
    ("layout", "given"),
    [
        (MIG, {}),
        (MIG, {"pci_gpus": [{"device_id": "ffff"}]}),
        ([{"gpus": ["0000:3b:00.0"], "sharing": "shared"}], {"expected_gpus": ["H100-80GB"]}),
    ],
)
def test_unknown_gpus_leave_the_layout_unchecked(layout, given):
    found = kubernetes_mapping(layout, "hami", **given)
    assert (found["checked"], found["problems"]) == (False, [])
    assert {key: found[key] for key in EMPTY} == EMPTY


@pytest.mark.parametrize(
    ("layout", "options", "problem"),
    [
        ([{"gpus": [0], "sharing": "nope"}], {}, "gpu_layout[0].sharing"),
        ([{"gpus": [7], "sharing": "shared"}], {}, "this host has no GPU 7"),
        (MIG, {"backend": "docker"}, "backend: "),
        (MIG, {"mig_strategy": "double"}, "mig_strategy: "),
        (MIG, {"lost": "found"}, "lost: "),
        (MIG, {"expected_gpus": ["H900"]}, "H900"),
        ([{"gpus": [0], "sharing": "mig", "mig": []}], {}, "without an instance"),
    ],
)
def test_only_problems_are_returned(layout, options, problem):
    asked = {"backend": "nvidia_device_plugin", "expected_gpus": ["H100-80GB"], **options}
    found = kubernetes_mapping(layout, **asked)
    assert problem in found["problems"][0]
    assert {key: found[key] for key in EMPTY} == EMPTY


def test_a_refusal_is_data_too():
    found = kubernetes_mapping(
        [{"gpus": [0], "sharing": "mig", "mig": []}], "nvidia_device_plugin", expected_gpus=["H100-80GB"]
    )
    (refusal,) = found["refusals"]
    assert (refusal["where"], refusal["gpus"], refusal["backends"]) == ("gpu_layout[0]", [0], ["nvidia_dra"])


def test_invalid_result_of_a_host_is_refused():
    host = state(gpu("a", 0, "H100-80GB"))
    host["gpus"][0]["uuid"] = "GPU-1'] || true || ['"
    found = kubernetes_mapping(MIG, "nvidia_dra", state=host, node="h100-01")
    assert found["problems"][0].startswith("h100-01: ")
    assert found["requests"] == []


def test_lost_gpu_is_a_problem_or_left_out():
    host = dict(state(gpu("a", 0, "H100-80GB")), lost_gpus=[{"index": 1, "problem": "GPU is lost"}])
    layout = [*MIG, {"gpus": [1], "sharing": "exclusive"}]
    (problem,) = kubernetes_mapping(layout, "nvidia_device_plugin", state=host)["problems"]
    assert problem.startswith("gpu_layout[1].gpus[0]: gpu 1 is lost")
    found = kubernetes_mapping(layout, "nvidia_device_plugin", state=host, lost="skip")
    assert found["resources"] == {"nvidia.com/mig-3g.40gb": 1}
    assert found["plan"][-1].startswith("gpu 1 is lost")
