# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the limiter from a host with reset.yml."""

from __future__ import annotations

TRACES = (
    "/usr/lib/openfleet-gpu",
    "/usr/bin/vgpu-run",
    "/usr/bin/vgpu-top",
    "/etc/openfleet-gpu",
    "/etc/cdi/openfleet-vgpu-pair.json",
    "/etc/tmpfiles.d/openfleet-vgpu.conf",
    "/etc/systemd/system/run-openfleet\\x2dgpu-vgpu.mount",
    "/etc/systemd/system/local-fs.target.wants/run-openfleet\\x2dgpu-vgpu.mount",
    "/etc/systemd/system/notebook.service.d",
    "/etc/systemd/system/openfleet-vgpu-agent.service",
    "/etc/systemd/system/multi-user.target.wants/openfleet-vgpu-agent.service",
    "/run/openfleet-gpu",
    "/var/lib/openfleet-gpu",
)


def test_dry_run_removes_nothing(ada):
    quotas = ada.ask("cat /etc/openfleet-gpu/vgpu/*/quota")
    told = ada.play("playbooks/reset.yml", "--check", "--diff")
    assert "remove /usr/bin/vgpu-run" in told
    assert ada.ask("cat /etc/openfleet-gpu/vgpu/*/quota") == quotas
    for path in TRACES:
        assert ada.host.file(path).exists, path


def test_removal_is_complete(ada):
    ada.play("playbooks/reset.yml")
    for path in TRACES:
        assert not ada.host.file(path).exists, path
    left = ada.ask("find /etc /usr /run /var -xdev -iname '*openfleet-vgpu*' -o -iname 'vgpu-*' 2>/dev/null")
    assert left == ""
    assert ada.host.file("/etc/systemd/system/notebook.service").exists
