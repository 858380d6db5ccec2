# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the versions that fix vulnerabilities: messages, reactions, documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages import minimum_versions
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.minimum_versions import DRIVER, TOOLKIT, judged

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("version", "open_ones"),
    [
        ("1.16.1", 10),
        ("1.16.2", 8),
        ("1.17.3", 4),
        ("1.17.4", 3),
        ("1.17.7-1", 3),
        ("1.17.8", 1),
        ("1.17.8-1", 1),
        ("1.18.2", 1),
        # As numbers, the parts of 1.9 make an older version than those of 1.18.
        ("1.9.0", 10),
    ],
)
def test_vulnerabilities_of_a_toolkit(version, open_ones):
    said = minimum_versions.toolkit(version)
    assert len(re.findall(r"CVE-\d{4}-\d+", said)) == open_ones
    assert "CVE-2026-24260" in said and "1.19.1 fixes" in said and "bulletin 5850 of 2026-06-30" in said


@pytest.mark.parametrize("version", ["1.19.1", "1.19.1-1", "1.20.0", "2.0.0"])
def test_fixed_toolkit_has_no_known_vulnerabilities(version):
    assert minimum_versions.toolkit(version) == ""


def test_vulnerable_driver_of_a_maintained_branch():
    said = minimum_versions.driver("580.105.08")
    assert said == (
        "the driver 580.105.08 has vulnerabilities that 580.178.04 fixes (NVIDIA's security bulletin 5861 of 2026-09-30)"
    )
    # As numbers, the parts of 580.95 make an older version than those of 580.105.
    assert minimum_versions.driver("580.95.05") and minimum_versions.driver("595.91.06")
    assert minimum_versions.driver("580.178.04") == minimum_versions.driver("595.91.07") == ""
    assert minimum_versions.driver("615.80.01") == ""


def test_driver_of_an_unmaintained_branch():
    for version in ("535.309.01", "570.211.01", "590.48.01", "550.163.01", "470.256.02"):
        branch = version.partition(".")[0]
        assert minimum_versions.driver(version) == (
            "the driver is %s, and branch %s no longer receives fixes: NVIDIA's security bulletin 5861 of 2026-09-30 has "
            "fixes only for branches 580, 595, 610, 615" % (version, branch)
        )
    old = minimum_versions.driver("535.274.02")
    assert "has vulnerabilities that 535.309.01 fixes" in old and "branch 535 no longer receives fixes" in old


@pytest.mark.parametrize("version", ["", "620.10.01", "700.1"])
def test_later_versions_have_no_known_vulnerabilities(version):
    assert minimum_versions.driver(version) == ""


def test_site_chooses_the_reaction():
    assert judged("it is old", "warn", "x", "Ask for more.") == "it is old"
    assert judged("it is old", "accept", "x", "Ask for more.") == ""
    assert judged("", "refuse", "x", "Ask for more.") == ""
    with pytest.raises(
        PlanError, match=r"^x: it is old\. Ask for more\. Or set x: warn to get only a warning\. Nothing was changed\.$"
    ):
        judged("it is old", "refuse", "x", "Ask for more.")


def test_documentation_has_the_same_table():
    text = (ROOT / "docs" / "security-versions.md").read_text()
    section = text.partition("## Minimum versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?:(\d+) \| )?([\d.]+) \| (.*?) \| \[(\d+)\]\((\S+)\), ([\d-]+) \|$", section, re.MULTILINE)
    documented = {(branch, version, names, int(number), url, day) for branch, version, names, number, url, day in rows}
    known = {("", fix.version, ", ".join(fix.vulnerabilities), fix) for fix in TOOLKIT}
    known |= {
        (str(branch), fix.version, "yes" if branch in minimum_versions.MAINTAINED else "no", fix)
        for branch, fix in DRIVER.items()
    }
    assert documented == {
        (branch, version, names, fix.bulletin.number, fix.bulletin.url, fix.bulletin.revised)
        for branch, version, names, fix in known
    }


def test_example_requests_no_vulnerable_version():
    example = ROOT / "inventories" / "example" / "group_vars"
    drivers = yaml.safe_load((example / "gpu_drivers.yml").read_text())
    containers = yaml.safe_load((example / "gpu_containers.yml").read_text())
    assert minimum_versions.driver(drivers["nvidia_driver_version"]) == ""
    assert minimum_versions.toolkit(containers["container_toolkit_version"]) == ""


#: Texts in which a user reads which version to set. The messages are in rules.py.
SHOWN = {
    "nvidia_driver": ("driver", r'V\((\d{3}\.[\d.]+)\)|"(\d{3}\.[\d.]+)"', minimum_versions.driver),
    "container_toolkit": (
        "toolkit",
        r'V\((1\.[\d.]+)\)|"(1\.[\d.]+)"|version: (1\.[\d.]+)',
        minimum_versions.toolkit,
    ),
}


@pytest.mark.parametrize("role", SHOWN)
def test_shown_version_is_not_vulnerable(role):
    package, pattern, known = SHOWN[role]
    module = "driver" if role == "nvidia_driver" else role
    places = [f"roles/{role}/{name}" for name in ("README.md", "defaults/main.yml", "meta/argument_specs.yml")]
    places += [f"plugins/modules/{module}.py", f"plugins/module_utils/{package}/rules.py"]
    shown = {}
    for place in places:
        versions = {"".join(match) for match in re.findall(pattern, (ROOT / place).read_text())}
        assert versions, place
        shown[place] = {version for version in versions if known(version)}
    assert not any(shown.values()), shown
