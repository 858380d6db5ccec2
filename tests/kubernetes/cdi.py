# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enable CDI on one of the cluster's nodes, and list a pod's device nodes.

Requires Debian 13, because Debian 12's containerd does not support CDI.
"""

from __future__ import annotations

#: Creates what a driver's installation and udev would create: the library whose name contains the version, and the
#: GPUs' device nodes. The nodes have the numbers of /dev/null, because there is no driver.
_DRIVER = """
set -eu
folder=/usr/lib/$(uname -m)-linux-gnu
echo 'a stand-in' >"$folder/libcuda.so.$0"
ln -sf "libcuda.so.$0" "$folder/libcuda.so.1"
# A hook of CDI's would make it in the pod, whose /usr is the node's and cannot be written.
ln -sf libcuda.so.1 "$folder/libcuda.so"
for name in nvidia0 nvidia1 nvidia2 nvidia3 nvidiactl; do mknod -m 666 /dev/$name c 1 3; done
cd /etc/containerd
keys='enable_cdi = true\\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]'
sed -i "/^\\[plugins.*cri\\"\\]/a $keys" config.toml
systemctl restart containerd
"""
LIST_NODES = "find /dev -type c -name 'nvidia*'; echo end; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"


def enable(cluster, node: str) -> None:
    """Create a driver's files on the node, and enable CDI in its containerd.

    A playbook must have copied NVML's bindings to the node.
    """
    version = cluster.module(node, "openfleet.gpu.gpu_info")["driver_version"]
    cluster.run(node, "sh", "-c", _DRIVER, version)


def nodes_in(cluster, pod: dict) -> set[str]:
    """Return the NVIDIA nodes in the pod's /dev, from its log."""
    metadata = pod["metadata"]
    folder = "/var/log/pods/%s_%s_%s/main" % (metadata["namespace"], metadata["name"], metadata["uid"])
    lines: list[str] = []

    def logged() -> bool:
        log = cluster.run(pod["spec"]["nodeName"], "sh", "-c", "cat %s/*.log" % folder, check=False)
        # Remove the time, the stream and the mark from each line.
        lines[:] = [line.split(" ", 3)[-1] for line in log.splitlines()]
        return "end" in lines

    cluster.plane.wait(logged, "pod %s lists its nodes" % metadata["name"])
    return set(lines[: lines.index("end")])
