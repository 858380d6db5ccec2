# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the variables, choices and task files of the role gpu_kubernetes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.model import MIG_STRATEGIES
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.registry import KEYS
from tests.unit import yaml_files

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "roles" / "gpu_kubernetes"
OPTIONS = yaml_files.read(ROLE / "meta" / "argument_specs.yml")["argument_specs"]["plan"]["options"]


def test_the_roles_defaults_are_those_of_its_argument_specs():
    defaults = yaml_files.read(ROLE / "defaults" / "main.yml")
    assert {name: option["default"] for name, option in OPTIONS.items() if "default" in option} == defaults
    assert [name for name, option in OPTIONS.items() if option.get("required")] == ["gpu_kubernetes_backend"]


def test_each_entry_point_has_its_tasks_and_the_same_variables():
    specs = yaml_files.read(ROLE / "meta" / "argument_specs.yml")["argument_specs"]
    for entry, spec in specs.items():
        assert spec["options"] == OPTIONS
        assert (ROLE / "tasks" / ("%s.yml" % entry)).is_file()


def test_task_files_that_name_modules_of_another_collection_are_included_behind_a_check():
    # When Ansible loads a file, it resolves the names of modules. This comes before a task of the file can report a
    # missing collection.
    first = {
        "plan.yml",
        "main.yml",
        "apply.yml",
        "prepare.yml",
        "remove.yml",
        "requirements.yml",
        "remove_from_cluster.yml",
    }
    named = {path.name for path in (ROLE / "tasks").glob("*.yml") if "kubernetes.core.k8s" in path.read_text()}
    assert not named & first


def test_a_task_file_that_includes_the_check_names_no_module_behind_it():
    checking = [
        path for path in (ROLE / "tasks").glob("*.yml") if "include_tasks: requirements.yml" in path.read_text()
    ]
    assert {path.name for path in checking} == {"plan.yml", "remove_from_cluster.yml"}
    for path in checking:
        assert "kubernetes.core" not in path.read_text(), path.name


def test_playbooks_and_tasks_name_no_backend():
    # Tasks must use the filter scheduler_backend, so that a new backend changes no task.
    key = re.compile(r"(?<![\w-])(?:%s)(?![\w-])" % "|".join(KEYS))
    files = [
        *ROOT.glob("*.yml"),
        *(ROOT / "playbooks").rglob("*.yml"),
        *(path for name in ("tasks", "vars", "handlers") for path in (ROOT / "roles").glob("*/%s/**/*.yml" % name)),
    ]
    assert {ROOT / "playbooks/site.yml", ROLE / "tasks/plan.yml", ROLE / "vars/main.yml"} <= set(files)
    named = {str(path.relative_to(ROOT)): key.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {name: keys for name, keys in named.items() if keys} == {}


def test_role_and_filter_have_the_librarys_choices():
    of_filter = yaml.safe_load(kubernetes_mapping.DOCUMENTATION)["options"]
    backends = [OPTIONS["gpu_kubernetes_backend"]["choices"], of_filter["backend"]["choices"]]
    strategies = [OPTIONS["gpu_kubernetes_mig_strategy"]["choices"], of_filter["mig_strategy"]["choices"]]
    assert backends == [list(KEYS)] * 2
    assert strategies == [list(MIG_STRATEGIES)] * 2
