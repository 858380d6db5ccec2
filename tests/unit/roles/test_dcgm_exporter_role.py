# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role dcgm_exporter: variables, requirements and counters file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import tomllib
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils import python_pins

pytestmark = pytest.mark.core

REPOSITORY = Path(__file__).parents[3]
ROLE = REPOSITORY / "roles" / "dcgm_exporter"
EXAMPLE = REPOSITORY / "inventories" / "example" / "group_vars" / "gpu_monitored.yml"


def defaults():
    return yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())


def test_the_roles_defaults_are_those_of_its_argument_specs():
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    assert set(specs) == {"main", "plan", "reset"}
    for entry_point in specs.values():
        assert {name: option["default"] for name, option in entry_point["options"].items()} == defaults()


def test_passwords_are_kept_out_of_logs():
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    assert specs["main"]["options"]["dcgm_exporter_basic_auth_users"]["no_log"] is True
    (install,) = (
        task
        for task in yaml.safe_load((ROLE / "tasks" / "install.yml").read_text())
        if "openfleet.gpu.dcgm_exporter" in task
    )
    assert install["no_log"] is True


def test_the_example_explains_every_variable_and_shows_its_default():
    """Check that the example's comments show the defaults of all variables."""
    example = EXAMPLE.read_text()
    for name, default in defaults().items():
        assert re.search(rf"^(# )?{name}:", example, re.MULTILINE), name
        shown = re.search(rf"^# ({name}:.*)$", example, re.MULTILINE)
        if shown:
            assert yaml.safe_load(shown.group(1)) == {name: default}


def test_tests_use_the_versions_of_hosts():
    hosts = python_pins.read((ROLE / "files" / "embedded-requirements.txt").read_text())
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    assert {"%s==%s" % (pin.name, pin.version) for pin in hosts} <= set(groups["unit"])


def counters():
    lines = (ROLE / "files" / "counters.csv").read_text().splitlines()
    return [[cell.strip() for cell in row] for row in csv.reader(line for line in lines if line and line[0] != "#")]


def test_counters_file_is_valid_for_dcgm_exporter():
    """Each line has three cells. A further comma would add a fourth.

    Types: https://github.com/NVIDIA/dcgm-exporter (README).
    """
    rows = counters()
    assert all(len(row) == 3 for row in rows)
    assert {row[1] for row in rows} <= {"gauge", "counter", "label"}
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"DCGM_(FI_(DEV|PROF)|EXP)_\w+|DCGM_FI_DRIVER_VERSION", name) for name in names)


def test_counters_file_has_fields_that_shipped_ones_lack():
    """NVIDIA's files have no field for total memory.

    They have SM_ACTIVE and SM_OCCUPANCY only in comments.
    """
    names = {row[0] for row in counters()}
    wanted = ["SM_ACTIVE", "SM_OCCUPANCY", "DRAM_ACTIVE", "PIPE_TENSOR_ACTIVE", "GR_ENGINE_ACTIVE"]
    assert {"DCGM_FI_PROF_" + name for name in wanted} <= names
    assert {"DCGM_FI_DEV_FB_" + name for name in ("USED", "FREE", "RESERVED")} <= names
    assert {"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_ROW_REMAP_PENDING"} <= names
