# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that vendors' code stays in their folders and other packages are neutral."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.parts import RESET, GpuStep
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import FORMS
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.registry import SETTINGS
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.registry import (
    DIVIDERS,
    VENDORS,
    divider_of,
    vendor_of,
)

PLUGINS = Path(__file__).resolve().parents[4] / "plugins"
UTILS = PLUGINS / "module_utils"
ROOT_PACKAGE = "ansible_collections.openfleet.gpu.plugins.module_utils."
FOLDERS = sorted(path.parent.name for path in (UTILS / "vendors").glob("*/__init__.py"))
#: In these packages, all code is vendor-neutral.
NEUTRAL = ("change", "layout", "plan")
#: Files outside a vendor's folder that may import from it, with the reason.
EXCEPTED = {
    "module_utils/vendors/registry.py": "the table of vendors",
    "module_utils/driver/observe.py": "installs the driver of NVIDIA",
    "module_utils/hardware/asking.py": "reads every NVML value of a GPU",
    "module_utils/hardware/collect.py": "reads every NVML value of a GPU",
    "module_utils/hardware/mig_reader.py": "reads every NVML value of a GPU",
    "module_utils/techniques/vgpu/agent_nvml.py": "the limiter of NVIDIA's GPUs reads the memory of tenants",
    "module_utils/cli/without_gpus.py": "checks MIG profiles of the catalogue",
    "module_utils/cli/main.py": "starts the reading of pynvml before other code is loaded",
    "module_utils/cli/show.py": "prints the GPUs as NVML reports them",
    "module_utils/cli/holders.py": "prints holders by NVML's GPUs",
    "module_utils/cli/keep_serve.py": "identifies programs by NVML's GPUs",
    "module_utils/driver/in_use.py": "finds users of NVIDIA's driver, also if it does not answer",
    "module_utils/export/look.py": "is sent with a module that only reads",
    "module_utils/vendors/lease_cards.py": "the table of cards of GPUs with leases",
    "module_utils/slurm/task_devices.py": "lists NVIDIA's GPUs and MIG devices by Slurm's number",
    "module_utils/metrics/look.py": "detects NVML calls that hang",
    "modules/gpu_info.py": "returns the GPUs as NVML reports them",
    "modules/gpu_check.py": "returns every NVML value of a GPU",
    "modules/layout_export.py": "is sent without planning code",
    "modules/reclaim.py": "is sent without planning code",
    "plugin_utils/packing/check.py": "packs MIG instances of the catalogue",
    "plugin_utils/packing/geometry.py": "packs MIG instances of the catalogue",
}


def imported(source: str, path: str) -> set[str]:
    """Return the names below `plugins` that a file imports, also within functions.

    `path` is the path of the file below `plugins`.
    """
    package, found = path.split("/")[:-1], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            else:
                base = (node.module or "").partition("openfleet.gpu.plugins.")[2].split(".")
            found |= {".".join(filter(None, [*base, each.name])) for each in node.names}
    return found


def vendors_in(source: str, path: str) -> set[str]:
    """Return the modules in vendors' folders that a file imports."""
    roots = ["module_utils.vendors.%s" % folder for folder in FOLDERS]
    return {name for name in imported(source, path) if any((name + ".").startswith(root + ".") for root in roots)}


def importers() -> dict[str, set[str]]:
    files = {str(file.relative_to(PLUGINS)): file for file in sorted(PLUGINS.rglob("*.py"))}
    inside = tuple("module_utils/vendors/%s/" % folder for folder in FOLDERS)
    found = {path: vendors_in(file.read_text("utf-8"), path) for path, file in files.items()}
    return {path: names for path, names in found.items() if names and not path.startswith(inside)}


@pytest.mark.slow
def test_only_named_files_import_a_vendor():
    assert set(importers()) == set(EXCEPTED)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("from ..vendors.nvidia.nvml.calls import IN_USE", "module_utils/change/converge.py"),
        ("def late():\n    from ..vendors import nvidia", "module_utils/layout/parse.py"),
        (
            "def outer():\n    def inner():\n        from ..vendors.nvidia import vendor",
            "module_utils/plan/gpu_plan.py",
        ),
        (
            "from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import pci",
            "plugin_utils/audit/make.py",
        ),
    ],
)
def test_each_import_of_a_vendor_is_detected(source, path):
    assert vendors_in(source, path)


def attributes(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("package", NEUTRAL)
def test_neutral_packages_read_no_value_of_a_vendor(package):
    """Check that neutral code branches only on values that `model.Device` has."""
    own = {"mig", "compute_mode", "compute_mode_fixed", "persistence_mode", "architecture", "nvlinks", "telemetry"}
    found = {str(path.relative_to(UTILS)): attributes(path) & own for path in (UTILS / package).rglob("*.py")}
    # These two are exceptions: the form of a layout names the compute mode, and assumed GPUs have the architecture of
    # their model.
    expected = {"layout": {"layout/form.py": {"compute_mode"}}, "plan": {"plan/assumed.py": {"architecture"}}}
    assert {path: names for path, names in found.items() if names} == expected.get(package, {})


def test_each_vendor_has_a_folder_and_a_line():
    assert sorted(vendor.key for vendor in VENDORS) == FOLDERS
    assert sum(len(vendor.dividers) for vendor in VENDORS) == len(DIVIDERS)
    settings = [each.setting for each in (*SETTINGS, *(own for vendor in VENDORS for own in vendor.settings))]
    assert len(set(settings)) == len(settings)


MADE_UP = "tests/integration/modules/made_up_vendor/"
NVIDIA = "plugins/module_utils/vendors/nvidia/"


@pytest.mark.parametrize(
    ("interface", "path", "name"),
    [
        ("Session", MADE_UP + "vendor.py", "Session"),
        ("Vendor", MADE_UP + "vendor.py", "MadeUpVendor"),
        ("Divider", MADE_UP + "divider.py", "SlicesDivider"),
        ("Session", NVIDIA + "nvml/bounded_session.py", "BoundedSession"),
        ("Vendor", NVIDIA + "vendor.py", "NvidiaVendor"),
        ("Divider", NVIDIA + "mig/divider.py", "MigDivider"),
        ("VendorSetting", NVIDIA + "compute_mode.py", "ComputeMode"),
        ("DeviceSetting", NVIDIA + "compute_mode.py", "ComputeMode"),
    ],
)
def test_vendors_have_all_members_of_the_protocol(interface, path, name):
    required = classes("plugins/module_utils/vendors/protocol.py")[interface]
    assert required and required <= classes(path)[name]


def classes(path: str) -> dict[str, set[str]]:
    """Return the members of each class in a file, by class name."""
    return {
        node.name: {name for statement in ast.walk(node) for name in defined(statement)}
        for node in ast.parse((PLUGINS.parent / path).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def defined(statement: ast.AST) -> set[str]:
    """Return the names that a statement in a class defines, in the class or on `self`."""
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = {node for target in targets if target for node in ast.walk(target)}
    return {getattr(node, "attr", None) or getattr(node, "id", "") for node in names}


def all_steps(kind: type[GpuStep] = GpuStep) -> set[type[GpuStep]]:
    """Return the step classes in the files `steps.py` of all vendors."""
    for path in UTILS.glob("vendors/**/steps.py"):
        importlib.import_module(ROOT_PACKAGE + ".".join(path.relative_to(UTILS).with_suffix("").parts))
    return {kind}.union(*(all_steps(each) for each in kind.__subclasses__()))


def test_a_step_that_needs_a_reset_ends_workloads():
    # If a step does not set `ends`, change/apply_plan.py does not check again for holders before the step.
    steps = [step for step in all_steps() if step.needs == RESET]
    assert steps and all(step.ends for step in steps)


def test_assumed_gpus_have_a_vendor_and_a_divider():
    for gpu in assumed_gpus(["H100-80GB", "L40S-48GB"]):
        assert vendor_of(gpu).key == "nvidia" and divider_of(gpu) in vendor_of(gpu).dividers
        assert any(form.key == divider_of(gpu).key for form in FORMS)
