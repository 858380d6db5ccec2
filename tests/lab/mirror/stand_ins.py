# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define small stand-ins for NVIDIA's packages that behave like the real ones.

Names, versions and purposes come from https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/debian.html
and from the lists of https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/. The guide also defines
which packages depend on each other by exact version ("Version locking"). The conflicts with Debian's own packages are
not from NVIDIA's control files. The stand-ins declare them, because hosts must not mix the two sets of packages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Released versions of two branches. The kernel modules of the last version fail to build, as some tests need.
VERSIONS = ("580.95.05", "580.105.08", "590.48.01", "590.44.01")
BROKEN = "590.44.01"

#: NVIDIA's names of Debian releases.
DIRECTORIES = {"bookworm": "debian12", "trixie": "debian13"}

#: Real Debian packages that the mirror offers to hosts. Packages that conflict with each other are in separate rows.
DEBIAN = (
    ("dkms", "initramfs-tools", "libcuda1", "nvidia-smi", "nvidia-persistenced", "kmod", "infiniband-diags"),
    ("dracut",),
)

LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class StandIn:
    """A package.

    Texts may contain {version}. `files` maps paths to (text, mode). `copies` maps paths to names of built files.
    """

    name: str
    depends: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    #: Paths in `files` that an administrator may edit (conffiles).
    conffiles: tuple[str, ...] = ()
    version: str = "{version}-1"


def same(*names: str) -> tuple[str, ...]:
    return tuple(name + " (= {version}-1)" for name in names)


SMI = """#!/usr/bin/python3
# A stand-in for nvidia-smi: what NVML says, by its C interface; with -L in the real one's words.
import ctypes, sys
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
except OSError as error:
    sys.exit("NVIDIA-SMI could not find libnvidia-ml.so: %s" % error)
text = ctypes.create_string_buffer(96)
def ask(name, *arguments):
    code = getattr(nvml, name)(*arguments)
    if code:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        sys.exit("%s: %s" % (name, nvml.nvmlErrorString(code).decode()))
ask("nvmlInit_v2")
ask("nvmlSystemGetDriverVersion", text, 96)
listing = "-L" in sys.argv
if not listing:
    print("Driver Version: " + text.value.decode())
count, handle, part = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
def name(of):
    ask("nvmlDeviceGetName", of, text, 96)
    return text.value.decode()
def uuid(of):
    ask("nvmlDeviceGetUUID", of, text, 96)
    return " (UUID: %s)" % text.value.decode() if listing else ""
ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
for index in range(count.value):
    ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    print("GPU %d: %s%s" % (index, name(handle), uuid(handle)))
    parts = ctypes.c_uint()
    ask("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(parts))
    for number in range(parts.value if listing else 0):
        if nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number, ctypes.byref(part)) == 0:
            print("  MIG %-12s Device %2d:%s" % (name(part).rpartition(" ")[2], number, uuid(part)))
"""

# Like the real daemons, these programs exit if the loaded kernel module has another version.
DAEMON = """#!/bin/sh
loaded=$(cat /sys/module/nvidia/version 2>/dev/null)
[ "$loaded" = "{version}" ] || { echo "$0 {version}: the loaded driver is '${loaded:-none}', not {version}" >&2; exit 1; }
%s
exec sleep infinity
"""

# Fabric Manager starts NVLSM if a ConnectX-7 function leads to NVSwitches, and exits if NVLSM is missing
# (https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/, "Systems Using Fourth Generation NVSwitches").
NVLSM = "opt/nvidia/nvlsm/sbin/nvlsm"
FABRIC = """if grep -qs SW_MNG /sys/bus/pci/devices/*/vpd; then
    for needed in /%s /usr/sbin/ibstat /sys/module/ib_umad; do
        [ -e $needed ] || { echo "$0: $needed does not exist" >&2; exit 1; }
    done
    /%s &
fi""" % (NVLSM, NVLSM)
# The `exit` keeps the shell from replacing itself by `sleep`, so the process keeps the program's name.
SUBNET = "#!/bin/sh\nsleep infinity\nexit 1\n"

# IMEX exits if this file names no nodes (https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/).
NODES = "etc/nvidia-imex/nodes_config.cfg"
DOMAIN = 'grep -q . /%s || { echo "$0: no nodes in /%s" >&2; exit 1; }' % (NODES, NODES)

UNIT = """[Unit]
Description=%s
After=simulated-hardware.service

[Service]
ExecStart=%s

[Install]
WantedBy=multi-user.target
"""


def daemon(name: str, what: str, besides: str = "", conffiles: tuple[str, ...] = ()) -> StandIn:
    program = "usr/bin/" + name
    return StandIn(
        name,
        conffiles=conffiles,
        files={
            program: (DAEMON % besides, 0o755),
            **dict.fromkeys(conffiles, ("", 0o644)),
            "usr/lib/systemd/system/%s.service" % name: (UNIT % (what, "/" + program), 0o644),
        },
        scripts={
            "postinst": "systemctl daemon-reload",
            "prerm": "systemctl stop %s.service 2>/dev/null || true" % name,
            "postrm": '[ "$1" != purge ] || systemctl disable %s.service 2>/dev/null || true\nsystemctl daemon-reload'
            % name,
        },
    )


MODULE = """/* A stand-in for nvidia.ko: no code, only what modinfo reads. */
#define INFO(name, text) \\
    static const char info_##name[] __attribute__((section(".modinfo"), used)) = #name "=" text
INFO(version, "{version}");
INFO(license, "{license}");
INFO(name, "nvidia");
"""
BAD_MODULE = "#error this release does not build on any kernel: it is here to fail\n"
DKMS = """PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make"
CLEAN="rm -f nvidia.ko"
AUTOINSTALL="yes"
"""
MAKEFILE = "nvidia.ko: nvidia.c\n\tcc -c -o $@ $<\n"
BUILD = """if [ "$1" = configure ]; then
    dkms status -m nvidia -v {version} | grep -q . || dkms add -m nvidia -v {version}
    dkms install --force -m nvidia -v {version} -k "$(uname -r)"
fi"""
UNBUILD = "dkms remove -m nvidia -v {version} --all || true"


def modules(name: str, other: str, license: str) -> StandIn:
    folder = "usr/src/nvidia-{version}/"
    return StandIn(
        name,
        ("dkms", *same("nvidia-kernel-support", "firmware-nvidia-gsp")),
        {"Conflicts": other, "Provides": "nvidia-kernel-{version}"},
        files={
            folder + "nvidia.c": (MODULE.replace("{license}", license), 0o644),
            folder + "Makefile": (MAKEFILE, 0o644),
            folder + "dkms.conf": (DKMS, 0o644),
        },
        scripts={"postinst": BUILD, "prerm": UNBUILD},
    )


STAND_INS = (
    StandIn(
        "libnvidia-ml1",
        ("libc6",),
        {"Provides": "libnvidia-ml.so.1 (= {version})", "Conflicts": "nvidia-alternative"},
        copies={LIBRARIES + "/libnvidia-ml.so.{version}": "libnvidia-ml.so.1"},
        links={LIBRARIES + "/libnvidia-ml.so.1": "libnvidia-ml.so.{version}"},
        scripts={"postinst": "ldconfig", "postrm": "ldconfig"},
    ),
    StandIn(
        "libcuda1",
        same("libnvidia-ml1"),
        {"Provides": "libcuda.so.1 (= {version})"},
        files={LIBRARIES + "/libcuda.so.{version}": ("a stand-in: nothing computes here\n", 0o644)},
        links={LIBRARIES + "/libcuda.so.1": "libcuda.so.{version}"},
    ),
    StandIn(
        "nvidia-driver-cuda",
        ("python3", *same("libcuda1", "libnvidia-ml1", "nvidia-persistenced")),
        {"Conflicts": "nvidia-smi", "Replaces": "nvidia-smi"},
        files={"usr/bin/nvidia-smi": (SMI, 0o755)},
    ),
    StandIn("nvidia-driver", same("nvidia-driver-libs")),
    StandIn("nvidia-driver-libs"),
    StandIn("firmware-nvidia-gsp", files={"usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin": ("a stand-in\n", 0o644)}),
    StandIn("nvidia-kernel-support"),
    modules("nvidia-kernel-open-dkms", "nvidia-kernel-dkms", "Dual MIT/GPL"),
    modules("nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "NVIDIA"),
    daemon("nvidia-persistenced", "NVIDIA Persistence Daemon (stand-in)"),
    daemon("nvidia-fabricmanager", "NVIDIA fabric manager service (stand-in)", FABRIC),
    daemon("nvidia-imex", "NVIDIA IMEX service (stand-in)", DOMAIN, conffiles=(NODES,)),
    # NVLSM has its own version numbers (https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/).
    StandIn("nvlsm", files={NVLSM: (SUBNET, 0o755)}, version="2025.06.11-1"),
)


def headers(kernel: str) -> StandIn:
    """Return a package with the headers of the kernel that lab hosts run on.

    Lab hosts are containers, so this is the kernel of the test machine. No archive has its headers.
    """
    folder = "usr/src/linux-headers-%s/" % kernel
    return StandIn(
        "linux-headers-" + kernel,
        files={folder + "Makefile": ("all:\n", 0o644), folder + "include/generated/uapi/linux/version.h": ("", 0o644),
               # dracut builds an initramfs only for a kernel whose configuration supports one.
               folder + ".config": ("CONFIG_BLK_DEV_INITRD=y\nCONFIG_RD_GZIP=y\n", 0o644)},
        links={"usr/lib/modules/%s/build" % kernel: "/usr/src/linux-headers-" + kernel},
        version="1",
    )  # fmt: skip
