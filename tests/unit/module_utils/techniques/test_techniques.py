# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that techniques stay in their folders, and that imports have no cycles."""

from __future__ import annotations

import ast
import json
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner, recovery
from ansible_collections.openfleet.gpu.plugins.module_utils.change.apply_plan import Context
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import asked, targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import GpuPlan
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.parts import GpuStep
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import FORMS, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.observers import OBSERVERS
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.registry import (
    SETTINGS,
    TECHNIQUES,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.service_views import SERVICE_VIEWS
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import MigPart
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session

UTILS = Path(__file__).resolve().parents[4] / "plugins/module_utils"
FOLDERS = sorted(path.parent for path in (UTILS / "techniques").glob("*/__init__.py"))
#: These files have tables of all techniques.
TABLES = {
    "techniques/%s.py" % name
    for name in ("registry", "forms", "observers", "service_views", "commands", "importers", "lenders")
} | {"lease_service/pods.py"}  # It publishes quotas of vgpu.


def imported(tree: ast.AST, path: str) -> set[str]:
    """Return the module_utils names that a module_utils file imports.

    The names are dotted and relative to module_utils. The result includes imports in functions.
    """
    package = path.split("/")[:-1]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            found |= {".".join([*base, name.name]) for name in node.names}
    return found


def words_of(tree: ast.AST) -> set[str]:
    """Return the names and strings in the code, without docstrings.

    The code could branch on these words. The attribute `Gpu.mig` is left out, because it is data of NVML.
    `test_vendors` limits its use.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "mig":
            continue
        for field in ("id", "attr", "arg", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


#: By technique and path pattern, the words of the technique that other files may contain.
EXCEPTED = {
    # `Gpu.mig` is NVML's data on a GPU. The name occurs in code and in the JSON of observations.
    "mig": {
        "plan/assumed.py": {"mig", "Mig"},
        "cli/holders.py": {"mig", "MIG"},
        "cli/show.py": {"mig", "MIG"},
        "hardware/reader.py": {"mig", "MIG"},
        "holders/*.py": {"mig", "MIG"},
        "model.py": {"mig", "Mig"},
        "vendors/nvidia/*.py": {"mig", "Mig"},
    },
    "mps": {
        # NVML and holders have this word for the processes of MPS, whatever user they belong to.
        "vendors/nvidia/nvml/session.py": {"mps"},
        "holders/*.py": {"mps", "MPS"},
        "metrics/text.py": {"MPS"},
        # Slurm has a GRES of this name.
        "slurm/config.py": {"mps"},
        # Tenants of one provider of vgpu are clients of MPS daemons.
        "techniques/vgpu/*.py": {"mps", "MPS"},
    },
}


def excepted(key: str, path: str) -> set[str]:
    """Return the words of a technique that the file may contain."""
    return {word for pattern, words in EXCEPTED.get(key, {}).items() if fnmatch(path, pattern) for word in words}


@lru_cache(maxsize=None)
def read(source: str, path: str) -> tuple[set[str], set[str]]:
    """Return the imports and words of a file.

    Each file is checked for each technique, so the result is cached.
    """
    tree = ast.parse(source)
    return imported(tree, path), words_of(tree)


def breaches(source: str, path: str, key: str, setting: str | None) -> set[str]:
    """Return the words and imports in a file that refer to a technique.

    The file is outside the folder of the technique.
    """
    names, all_words = read(source, path)
    inside = "techniques.%s" % key
    found = {name for name in names if name == inside or name.startswith(inside + ".")}
    words = {word for word in all_words if word.lower().replace("-", "_") in (key, setting)}
    return found | words - excepted(key, path)


@pytest.mark.slow
@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.key)
def test_only_its_folder_and_the_tables_name_a_technique(technique):
    folder = "techniques/%s/" % technique.key
    found = {}
    for file in sorted(UTILS.rglob("*.py")):
        path = str(file.relative_to(UTILS))
        if not path.startswith(folder) and path not in TABLES:
            found[path] = breaches(file.read_text(encoding="utf-8"), path, technique.key, technique.setting)
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("from ..techniques.turns.plan import plan", "change/converge.py"),
        ("def late():\n    from ..techniques import turns", "cli/main.py"),
        ('if entry.sharing == "turns": pass', "export/layout.py"),
        ("gpu.turn_length", "change/planner.py"),
        ('data = dict(turn_length="long")', "change/plan_file.py"),
        ('data["turn_length"]', "change/plan_file.py"),
    ],
)
def test_each_way_to_name_a_technique_is_detected(source, path):
    assert breaches(source, path, "turns", "turn_length")


def test_a_message_may_name_a_technique():
    source = '"""Say that turns exist."""\nraise ValueError("choose another sharing (exclusive or turns)")'
    assert not breaches(source, "mps_plan.py", "turns", "turn_length")


def test_each_folder_is_in_the_tables():
    assert sorted(technique.key for technique in TECHNIQUES) == [folder.name for folder in FOLDERS]
    assert [technique.key for technique in TECHNIQUES] == [form.key for form in FORMS]
    assert [technique.observer for technique in SETTINGS] == list(OBSERVERS)
    beside = [(technique.key, technique.service.name) for technique in TECHNIQUES if technique.service is not None]
    assert beside == [(each.key, each.name) for each in SERVICE_VIEWS]


def test_packages_do_not_import_each_other_in_cycles():
    """A package is a folder of module_utils, or a file outside these folders."""
    graph: dict[str, set[str]] = {}
    for file in sorted(UTILS.rglob("*.py")):
        path = str(file.relative_to(UTILS))
        here = path.split("/")[0].replace(".py", "")
        names = {name.split(".")[0] for name in read(file.read_text(encoding="utf-8"), path)[0]}
        graph.setdefault(here, set()).update(names - {here, ""})
    assert {"change", "cli"} <= {name for name, used in graph.items() if "techniques" in used}
    # Remove packages without imports until no such package is left. The other packages are in a cycle, or lead to one.
    while True:
        done = {name for name, used in graph.items() if not used & graph.keys()}
        if not done:
            break
        graph = {name: used for name, used in graph.items() if name not in done}
    assert graph == {}


# ---------------------------------------------------------------------- techniques in plans and journals

GPUS = assumed_gpus(["L40S-48GB", "L40S-48GB"])
LAYOUT = [
    {"gpus": [0], "sharing": "time_slicing", "time_slicing": {"slice": "long"}},
    {"gpus": [1], "sharing": "shared"},
]


def test_target_is_printed_with_its_setting():
    assert [asked(target) for target in targets(parse_layout(LAYOUT), GPUS)] == ["time_slicing: long", "shared"]


def test_journal_has_each_setting_with_the_other_keys(tmp_path):
    after, journal = targets(parse_layout(LAYOUT), GPUS), Journal(str(tmp_path))
    before = [planner.target_of(gpu) for gpu in GPUS]
    journal.begin(before, after)
    kept = json.loads(journal.path.read_text())
    keys = {"gpu_uuid", "where", "sharing", "mig_enabled", "instances", "compute_mode"}
    keys |= {technique.setting for technique in SETTINGS}
    assert [set(target) for target in kept["before"] + kept["after"]] == [keys] * 4
    assert [target["time_slice"] for target in kept["before"] + kept["after"]] == [None, None, "long", "default"]
    entry = journal.read()
    assert (list(entry.before), entry.after) == (before, after)


def test_journal_with_an_unknown_setting_is_refused(tmp_path):
    journal = Journal(str(tmp_path))
    journal.begin([], targets(parse_layout(LAYOUT), GPUS))
    kept = journal.path.read_text()
    journal.path.write_text(kept.replace('"time_slice"', '"colour"'))
    with pytest.raises(ApplyError) as raised:
        recovery.recover(Context(Session(), journal))
    assert raised.value.where == str(journal.path)
    assert journal.path.read_text() == kept.replace('"time_slice"', '"colour"')


def test_unknown_step_is_refused():
    class OtherStep(GpuStep):
        technique = "other"

    part = MigPart(GPUS[0], False, (OtherStep(),))
    plan = GpuPlan(GPUS[0], planner.target_of(GPUS[0]), part)
    with pytest.raises(TypeError, match="not a step"):
        apply_plan.run_plans(Context(Session(), None), [plan], [])
