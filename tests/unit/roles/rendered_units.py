# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render every systemd unit of the collection, and analyze its sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.openfleet.gpu.plugins.filter.layout_needs import layout_needs
from ansible_collections.openfleet.gpu.plugins.module_utils.install import gpu_simulator
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import unit as mps_unit
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files as toolkit_files

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "roles"

SHARED = [{"gpus": "all", "sharing": "shared"}]
MPS = [{"gpus": [0], "sharing": "mps", "mps": {"clients": 4, "active_thread_percentage": 25}}]
VGPU = [{"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}}]
SECURED = {
    "dcgm_exporter_tls_source": "host",
    "dcgm_exporter_tls_certificate": "/etc/ssl/gpu.crt",
    "dcgm_exporter_tls_key": "/etc/ssl/private/gpu.key",
    "dcgm_exporter_basic_auth_users": {"prometheus": "a password"},
}
AUDIT = {"gpu_audit_project_dir": "/srv/inventory", "gpu_audit_vault_password_file": "/etc/gpu-audit/vault-password"}
METRICS = {"gpu_layout": SHARED, "gpu_layout_metrics_dir": "/var/lib/openfleet-gpu-metrics"}

#: {(unit name, variant): (role, template, variables)}
TEMPLATES: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    ("gpu-layout.service", ""): ("gpu_layout", "gpu-layout.service.j2", {"gpu_layout": SHARED}),
    ("gpu-layout.service", "mps"): ("gpu_layout", "gpu-layout.service.j2", {"gpu_layout": MPS}),
    ("gpu-layout.service", "vgpu"): ("gpu_layout", "gpu-layout.service.j2", {"gpu_layout": VGPU}),
    ("gpu-layout-metrics.service", ""): ("gpu_layout", "gpu-layout-metrics.service.j2", METRICS),
    ("gpu-layout-keep.service", ""): ("gpu_layout", "gpu-layout-keep.service.j2", {"gpu_layout": SHARED}),
    ("gpu-layout-lease.service", ""): ("gpu_layout", "gpu-layout-lease.service.j2", {"gpu_layout": SHARED}),
    ("gpu-layout-lease.service", "vgpu"): ("gpu_layout", "gpu-layout-lease.service.j2", {"gpu_layout": VGPU}),
    ("openfleet-slurm-devices.service", ""): ("gpu_slurm", "openfleet-slurm-devices.service.j2", {}),
    ("openfleet-gpu-dra.service", ""): ("gpu_kubernetes", "openfleet-gpu-dra.service.j2", {}),
    ("openfleet-vgpu-agent.service", ""): ("gpu_layout", "openfleet-vgpu-agent.service.j2", {"gpu_layout": VGPU}),
    ("gpu-audit.service", ""): ("gpu_audit", "gpu-audit.service.j2", AUDIT),
    ("dcgm-exporter.service", "embedded"): ("dcgm_exporter", "embedded.service.j2", {"dcgm_exporter_source": "embedded"}),
    ("dcgm-exporter.service", "embedded, with secrets"): (
        "dcgm_exporter", "embedded.service.j2", {"dcgm_exporter_source": "embedded", **SECURED},
    ),
    ("dcgm-exporter.service", "packages"): ("dcgm_exporter", "packages.service.j2", {"dcgm_exporter_source": "packages"}),
    ("dcgm-exporter.service", "docker"): (
        "dcgm_exporter",
        "docker.service.j2",
        # A filter of the collection would set this variable, but the filter is not available outside a play.
        {"dcgm_exporter_source": "docker", "dcgm_exporter__image": "dcgm-exporter@sha256:0"},
    ),
}  # fmt: skip
#: The texts of these units come from modules.
TEXTS = {
    ("openfleet-mps@.service", ""): mps_unit.shared_files(selinux=False)["etc/systemd/system/openfleet-mps@.service"],
    ("openfleet-mps@.service", "SELinux"): mps_unit.shared_files(selinux=True)[
        "etc/systemd/system/openfleet-mps@.service"
    ],
    ("nvidia-cdi-refresh.service", ""): toolkit_files.refresh_service(),
    ("gpusim-kernel-files.service", ""): gpu_simulator.KERNEL_FILES_SERVICE,
}


def rendered(name: str, special: str) -> str:
    """Return the text of a unit in one of its variants."""
    if (name, special) in TEXTS:
        return TEXTS[name, special]
    return rendered_with(*TEMPLATES[name, special])


def rendered_with(role: str, template: str, given: dict[str, Any]) -> str:
    """Return the template of a role, rendered with these variables."""
    loader = DataLoader()
    variables: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        variables.update(loader.load_from_file(str(ROLES / role / part / "main.yml"), trusted_as_template=True))
    variables.update(given, role_path=str(ROLES / role))
    # A filter of the collection, which is not available outside a play.
    variables["gpu_layout__needs"] = layout_needs(given.get("gpu_layout", []))
    text = (ROLES / role / "templates" / template).read_text(encoding="utf-8")
    found = Templar(loader=loader, variables=variables).template(trust_as_template(text))
    # On a host, an installer replaces this placeholder.
    return str(found).replace("@python@", "/usr/bin/python3")


def exposure(folder: Path, name: str, text: str) -> float:
    """Return systemd's exposure rating of a unit, from 0 to 10."""
    # For a template unit, systemd analyzes only an instance.
    file = folder / name.replace("@.", "@x.")
    file.write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=100"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    # If systemd ignores a setting, the setting protects nothing.
    assert "ignoring" not in done.stderr, done.stderr
    last = [line for line in done.stdout.splitlines() if "Overall exposure level" in line]
    assert len(last) == 1, done.stdout + done.stderr
    return float(last[0].partition(".service:")[2].split()[0])
