# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define stand-ins for the container toolkit's packages.

The packages are small but behave like the real ones. Names and versions come from
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/release-notes.html. Each package requires the
others in exactly its own version. The files of the base package and its configuration step follow packaging/debian and
deployments/systemd of https://github.com/NVIDIA/nvidia-container-toolkit.
"""

from __future__ import annotations

from tests.lab.mirror.stand_ins import LIBRARIES, StandIn, same

#: The last release without its own systemd unit, a release that drops containerd's imports, and two releases without
#: this bug.
VERSIONS = ("1.17.8", "1.18.0", "1.18.1", "1.18.2")

# The hook runs in the root of the container before its program starts. It lets the loader find the mounted libraries.
CDI_HOOK = """#!/usr/bin/python3
import json, subprocess, sys
from pathlib import Path
state = json.load(sys.stdin)
root = Path(json.loads(Path(state["bundle"], "config.json").read_text())["root"]["path"])
folders = [value for option, value in zip(sys.argv, sys.argv[1:]) if option == "--folder"]
sys.exit(subprocess.call(["/sbin/ldconfig", "-r", str(Path(state["bundle"]) / root), *folders]))
"""

# Like the real program, it passes a container without a GPU to runc.
RUNTIME = '#!/bin/sh\nexec runc "$@"\n'

REFRESH_SERVICE = """[Unit]
Description=A stand-in of the container toolkit's unit
ConditionPathExists=|/usr/bin/nvidia-smi
ConditionPathExists=|/usr/sbin/nvidia-smi
ConditionPathExists=/usr/bin/nvidia-ctk
After=multi-user.target
[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
ExecCondition=/usr/bin/grep -qE '/(nvidia|nvidia-current)\\\\.ko' /lib/modules/%v/modules.dep
ExecStart=/usr/bin/nvidia-ctk cdi generate
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
"""
REFRESH_PATH = """[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/lib/modules/%v/modules.dep.bin
[Install]
WantedBy=multi-user.target
"""
CONFIGURE = """if [ "$1" = configure ]; then
    systemctl daemon-reload
    systemctl enable --now nvidia-cdi-refresh.path
    systemctl enable --now nvidia-cdi-refresh.service
fi"""


def stand_ins(version: str, nvidia_ctk: str) -> tuple[StandIn, ...]:
    keeps_specification = version != "1.17.8"
    programs = {"nvidia-ctk": nvidia_ctk, "nvidia-cdi-hook": CDI_HOOK, "nvidia-container-runtime": RUNTIME}
    base = {"usr/bin/" + name: (text, 0o755) for name, text in programs.items()}
    if keeps_specification:
        folder = "usr/lib/systemd/system/nvidia-cdi-refresh."
        base.update({folder + "service": (REFRESH_SERVICE, 0o644), folder + "path": (REFRESH_PATH, 0o644)})
    library = LIBRARIES + "/libnvidia-container.so.{version}"
    return (
        StandIn("libnvidia-container1", ("libc6",), files={library: ("a stand-in\n", 0o644)}),
        StandIn(
            "libnvidia-container-tools",
            same("libnvidia-container1"),
            files={"usr/bin/nvidia-container-cli": ("#!/bin/sh\nexit 1\n", 0o755)},
        ),
        StandIn(
            "nvidia-container-toolkit-base",
            ("python3",),
            files=base,
            scripts={"postinst": CONFIGURE} if keeps_specification else {},
        ),
        StandIn(
            "nvidia-container-toolkit",
            (*same("nvidia-container-toolkit-base", "libnvidia-container-tools"), "libseccomp2"),
            files={"usr/bin/nvidia-container-runtime-hook": ("#!/bin/sh\nexit 1\n", 0o755)},
        ),
    )
