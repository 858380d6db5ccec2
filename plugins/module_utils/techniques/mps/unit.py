# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the files that all MPS control daemons share, with pure functions.

These are the systemd unit template and the logrotate rules.
"""

from __future__ import annotations

#: Folder with each daemon's log directory, relative to the host's root.
LOGS = "var/log/openfleet-mps"
UNIT_PATH = "etc/systemd/system/openfleet-mps@.service"
LOGROTATE_PATH = "etc/logrotate.d/openfleet-mps"

#: Seconds that systemd allows a daemon for starting, and for stopping.
START_SECONDS, STOP_SECONDS = 30, 30
#: Seconds that clients have to end when their daemon stops.
_QUIT_SECONDS = 10

# SELinux type of files that confined containers may use. The unit sets it at each start, because /run is empty after a
# boot.
_SELINUX = "ExecStartPre=-+/usr/bin/chcon --type=container_file_t %t/openfleet-mps/%i\n"

_UNIT = """\
# Written by openfleet.gpu for the MPS control daemons that gpu_layout names. It is not enabled: gpu-layout.service starts
# the daemons, after it has made the MIG devices that they serve.
[Unit]
Description=NVIDIA MPS control daemon %i
Documentation=https://docs.nvidia.com/deploy/mps/
After=gpu-layout.service nvidia-persistenced.service
# Clients that would find no daemon would take the GPU for themselves.
Before=docker.service containerd.service crio.service podman.service podman-restart.service
Before=slurmd.service kubelet.service
# The pipe directory has a file system of limited size, as NAME's mount unit says.
RequiresMountsFor=%t/openfleet-mps/%i
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
EnvironmentFile=/etc/openfleet-gpu/mps/%i.env
# In the foreground the daemon writes its log to the journal. Its log directory is for releases that write files as well.
ExecStart=/usr/bin/nvidia-cuda-mps-control -f
# This unit's servers have no permission to load kernel modules or to create device nodes, so this command does it for every
# GPU and MIG device. Without a node, CUDA fails. -u creates the nodes of nvidia-uvm.
ExecStartPre=-+/bin/sh -c 'make=/usr/bin/nvidia-modprobe; $$make -c 255; $$make -u -c 0; cd /proc/driver/nvidia || exit; \\
  sed -n "s/^Device Minor:[[:space:]]*//p" gpus/*/information | while read minor; do $$make -c $$minor; done; \\
  find $$PWD/capabilities -path "*/mig/gi*/access" -exec $$make -f {} ";"'
# Remove leftovers of a killed daemon. The directory itself stays, because containers have it mounted.
ExecStartPre=/usr/bin/find %t/openfleet-mps/%i -mindepth 1 -delete
@SELINUX@\
# The pipe directory is closed to users until the limits are set, so that no client comes in without.
ExecStartPost=/bin/sh -c '\\
  until echo get_server_list | /usr/bin/nvidia-cuda-mps-control; do kill -0 $$MAINPID || exit 1; sleep 0.1; done; \\
  /usr/bin/nvidia-cuda-mps-control </etc/openfleet-gpu/mps/%i.limits && exec chmod 0755 %t/openfleet-mps/%i'
ExecStop=-/bin/sh -c 'echo quit -t @QUIT@ | /usr/bin/nvidia-cuda-mps-control'
# No restart after `quit`, with which root ends it on purpose.
Restart=on-failure
RestartSec=1
TimeoutStartSec=@START@
TimeoutStopSec=@STOP@
RuntimeDirectory=openfleet-mps/%i
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
LogsDirectory=openfleet-mps/%i

# As root, because the daemon starts a server as the user of each client: SETUID for that, KILL to end it, and the others to
# read a client's namespaces and shared memory. Servers of other users have no capability.
CapabilityBoundingSet=CAP_SETUID CAP_KILL CAP_SYS_PTRACE CAP_DAC_OVERRIDE
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
IPAddressDeny=any
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Left open on purpose:
# - PrivateDevices, DevicePolicy and ProtectClock, which implies it: the servers open the GPUs, and the numbers of some of
#   their nodes are assigned when a module is loaded, which may be after this start.
# - PrivateNetwork: CUDA passes handles through sockets in the abstract namespace, which belongs to the network's.
# - PrivateUsers, ProtectProc, ProcSubset, PrivateIPC: servers and clients, of any user, see each other.
# - MemoryDenyWriteExecute: CUDA may compile code at run time.
"""

#: logrotate copies and truncates the daemon's log files, because the daemon keeps them open. The journal rotates
#: itself.
_LOGROTATE = """\
# Written by openfleet.gpu for the MPS control daemons that gpu_layout names.
/var/log/openfleet-mps/*/*.log {
    weekly
    maxsize 10M
    rotate 4
    compress
    copytruncate
    missingok
    notifempty
}
"""


def shared_files(selinux: bool) -> dict[str, str]:
    """Return the content of each file by path.

    `selinux` is true if the host has SELinux.
    """
    unit = _UNIT.replace("@SELINUX@", _SELINUX if selinux else "")
    for mark, seconds in (("@QUIT@", _QUIT_SECONDS), ("@START@", START_SECONDS), ("@STOP@", STOP_SECONDS)):
        unit = unit.replace(mark, str(seconds))
    return {UNIT_PATH: unit, LOGROTATE_PATH: _LOGROTATE}
