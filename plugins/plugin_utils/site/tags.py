# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check whether roles that tags select can run without the excluded ones. Pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..host_values import text
from . import needs

# Tags that select every task.
_EVERYTHING = {"all", "tagged"}
# Tags that Molecule skips in every run, even if no task has them, and one (the last) that it skips only in the check of
# idempotence (https://docs.ansible.com/projects/molecule/configuration/, "Provisioner").
_SKIPPED_BY_MOLECULE = {"notest", "molecule-notest", "molecule-idempotence-notest"}
_NOTHING_CHANGED = "Nothing was changed."
# Variables that request a role. A role runs on hosts with one of its variables, or on every host if it is not listed
# here.
_ASKED_BY = {
    "gpu_simulator": ("gpu_simulator_gpus",),
    "nvidia_driver": ("nvidia_driver_version", "nvidia_driver_state"),
    "container_toolkit": ("container_toolkit_version", "container_toolkit_state"),
    "gpu_kubernetes": ("gpu_kubernetes_backend",),
    "gpu_slurm": ("gpu_slurm_state",),
    "dcgm_exporter": ("dcgm_exporter_source", "dcgm_exporter_state"),
    "vgpu_limiter": ("vgpu_limiter_services", "vgpu_limiter_state"),
}
_GROUPS = {"gpu_monitoring": "gpu_monitoring", "gpu_audit": "gpu_audit"}


def problem(
    tags: Sequence[str],
    run: Sequence[str],
    skip: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    hostvars: Mapping[str, Mapping[str, Any]] | None,
) -> str:
    """Return why a run with these `--tags` and `--skip-tags` is refused, or "".

    `tags` has the playbook's tags, one per role. Without them, every tag is refused. If `hostvars` is None, a tag is
    accepted even if no host uses its role.
    """
    named = [tag for tag in dict.fromkeys(run) if tag not in _EVERYTHING]
    skip = [tag for tag in skip if tag not in _SKIPPED_BY_MOLECULE]
    unknown = [tag for tag in [*named, *skip] if tag not in (*tags, "always")]
    if not (named or skip):
        return ""
    if not tags:
        return "This playbook has no tags. Run it without --tags and --skip-tags. %s" % _NOTHING_CHANGED
    if unknown:
        shown = ", ".join(text(tag, 80) for tag in dict.fromkeys(unknown))
        return "Unknown tag %s. The tags are %s. %s" % (shown, ", ".join(tags), _NOTHING_CHANGED)
    if not selected(tags, run, skip):
        cure = (
            "For a plan without changes, use --check" if named == ["always"] else "Select one of %s" % ", ".join(tags)
        )
        return "These tags select no role. %s. %s" % (cure, _NOTHING_CHANGED)
    for role in named:
        if role in tags and not _is_asked_for(role, groups, hostvars):
            if role in _GROUPS:
                cure = "The group %s has no hosts." % _GROUPS[role]
            else:
                cure = "No host has %s." % " or ".join(_ASKED_BY[role])
            return "The tag %s selects nothing. %s %s" % (role, cure, _NOTHING_CHANGED)
    return ""


def selected(tags: Sequence[str], run: Sequence[str], skip: Sequence[str]) -> set[str]:
    """Return the selected roles."""
    chosen = set(tags) if _EVERYTHING & set(run) else set(tags) & set(run)
    return chosen - set(skip)


def _is_asked_for(
    role: str, groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]] | None
) -> bool:
    if role in _GROUPS:
        return bool(groups.get(_GROUPS[role]))
    if role not in _ASKED_BY or hostvars is None:
        return True
    for host in groups.get("gpu_hosts", []):
        variables = hostvars[host]
        if any(name in variables for name in _ASKED_BY[role]):
            return True
        if role == "vgpu_limiter" and needs.of_layout(variables.get("gpu_layout", []))["tenants"]:
            return True
    return False


def lacking(roles: set[str], plans: Mapping[str, Any], inventory: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each role that this host needs but that is not selected.

    `plans` has the results of the modules that made the plan, with the keys `layout` and `driver`. `inventory` has the
    keys `simulated`, `kubernetes` (the backend's name, or ""), `slurm` and `tenants` (names).
    """
    layout, driver = plans["layout"], plans["driver"]
    changes = bool((layout.get("counts") or {}).get("gpus_changed")) or not layout.get("driver_present", False)
    driver_changes = bool(driver.get("needed") or driver.get("drained") or driver.get("reboot"))
    sentences = []

    def need(role: str, other: str, reason: str) -> None:
        if role in roles and other not in roles:
            sentences.append("The tag %s also needs the tag %s: %s." % (role, other, reason))

    if driver_changes:
        need("gpu_layout", "nvidia_driver", "the driver that the plan needs is not installed")
        need("nvidia_driver", "gpu_layout", "a new driver removes the layout until the layout is applied again")
    if inventory["simulated"] and not layout.get("driver_present", False):
        need("gpu_layout", "gpu_simulator", "without the simulator, the host has no GPUs")
    if inventory["tenants"] and changes:
        need("gpu_layout", "vgpu_limiter", "without the limiter, tenants have no limits")
    if inventory["kubernetes"] and changes:
        need("gpu_layout", "gpu_kubernetes", "the layout changes what the node offers")
        need("gpu_kubernetes", "gpu_layout", "the node would offer devices that the layout has not created yet")
    if inventory.get("slurm") and changes:
        need("gpu_layout", "gpu_slurm", "the layout changes the GRES of the node")
        need("gpu_slurm", "gpu_layout", "Slurm would allocate devices that the layout has not created yet")
    return sentences
