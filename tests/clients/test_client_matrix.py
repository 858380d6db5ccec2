# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run real clients on simulated GPUs of every model.

accepted.yml must accept everything that is missing.
"""

from __future__ import annotations

import os

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import find_model, load_models
from tests.clients import client_archive
from tests.clients.client_hosts import hosts_of
from tests.clients.client_matrix import ACCEPTED, CLIENTS, Client, Finding, accepting
from tests.integration.simulated_host import SimulatedHost
from tests.thorough import THOROUGH

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root: run as root")

#: Boards with and without NVLink and MIG, from four architectures.
USUAL_MODELS = ["H100-80GB", "A30-24GB", "L40S-48GB", "T4-16GB"]

#: Titles of table entries that the tests needed, and clients that the archive no longer has.
needed: set[str] = set()
left_out: list[str] = []


def clients() -> list:
    return [
        pytest.param(client, id=client.name.replace(" ", "-"), marks=[] if entry.get("usual") else pytest.mark.thorough)
        for entry, client in ((entry, Client(entry)) for entry in CLIENTS)
    ]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build the library once."""
    return SimulatedHost.build(tmp_path_factory.mktemp("clients"))


@pytest.mark.parametrize("client", clients())
def test_a_client_misses_only_what_is_accepted(client, build):
    try:
        client.fetch()
    except client_archive.NotOffered as reason:
        left_out.append(client.name)
        pytest.skip(f"{client.name}: {reason}")
    unexpected = []
    for key, model in load_models().items():
        if key not in USUAL_MODELS and not THOROUGH:
            continue
        for finding in client.findings(hosts_of(build, model, client), model):
            rule = accepting(finding, model)
            if rule is None:
                unexpected.append(str(finding))
            else:
                needed.add(rule["title"])
    assert unexpected == [], "\n".join(["not in tests/clients/accepted.yml:", *unexpected])


@pytest.mark.thorough
def test_every_entry_of_the_table_is_needed():
    if left_out:
        pytest.skip(f"the archive does not have {', '.join(left_out)}")
    assert [entry["title"] for entry in ACCEPTED if entry["title"] not in needed] == []


def test_every_entry_says_why_and_from_where():
    titles = [entry["title"] for entry in ACCEPTED]
    assert len(titles) == len(set(titles))
    for entry in ACCEPTED:
        assert entry["clients"] and entry["command"] and entry["findings"] and entry["why"] and entry["source"], entry


@pytest.mark.parametrize(
    "client, accepted",
    [
        ("nvidia-smi 450.248.02", True),
        ("nvidia-smi 470.256.02", True),
        ("nvidia-smi 525.147.05", False),
        ("gpustat 1.1", False),
    ],
)
def test_an_entry_is_for_branches_of_a_client(client, accepted):
    rule = {"clients": ["nvidia-smi 450..470"], "command": "-L", "findings": ["x"]}
    finding = Finding(client, "T4-16GB", "-L", "", "x")
    assert (accepting(finding, find_model("T4-16GB"), [rule]) is rule) == accepted


@pytest.mark.parametrize("key, accepted", [("A16-16GB", True), ("H100-80GB", False)])
def test_an_entry_for_unknown_figures_is_for_models_that_lack_one(key, accepted):
    rule = {"clients": ["nvidia-smi"], "command": "*", "findings": ["x"], "unknown": ["vbios_version"]}
    finding = Finding("nvidia-smi 535.261.03", key, "-q -x", "plain", "x")
    assert (accepting(finding, find_model(key), [rule]) is rule) == accepted
