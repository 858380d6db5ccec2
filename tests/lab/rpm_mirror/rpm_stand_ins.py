# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define stand-ins for NVIDIA's RPM packages as rpmbuild specs.

Names, epochs and dependencies come from
https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/red-hat-enterprise-linux.html and the lists of
https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/. The scriptlets follow the specs of
https://github.com/NVIDIA/yum-packaging-nvidia-driver and yum-packaging-dkms-nvidia.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.lab.mirror import stand_ins
from tests.lab.mirror.stand_ins import (
    BAD_MODULE,
    BROKEN,
    DAEMON,
    DKMS,
    FABRIC,
    MAKEFILE,
    MODULE,
    NVLSM,
    SMI,
    SUBNET,
    UNIT,
)

# Two versions from each of two branches. The kernel modules of the last version fail to build.
VERSIONS = stand_ins.VERSIONS
# This version cannot be installed: a scriptlet exits with an error before the files are installed.
FAILS = "590.44.02"
TOOLKIT_VERSIONS = ("1.18.1", "1.18.2")
# The transaction of the second version fails after DCGM was upgraded.
EXPORTER_VERSIONS = ("4.4.1", "4.4.2", "4.5.0")
EXPORTER_FAILS = "4.4.2"
RELEASES = {"9": "9.6", "10": "10.0"}


@dataclass(frozen=True)
class Rpm:
    """An RPM package, from which `spec` makes the text for rpmbuild.

    Texts may contain {version}. `files` maps paths to (text, mode). `copies` maps paths to names of built files.
    """

    name: str
    version: str = "{version}"
    epoch: str = "3"
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    # Files that a scriptlet creates.
    ghosts: tuple[str, ...] = ()


def same(*names: str) -> tuple[str, ...]:
    return tuple(name + " = 3:{version}" for name in names)


def daemon(name: str, what: str, besides: str = "", requires: tuple[str, ...] = ()) -> Rpm:
    return Rpm(
        name,
        requires=requires,
        files={
            "usr/bin/" + name: (DAEMON % besides, 0o755),
            "usr/lib/systemd/system/%s.service" % name: (UNIT % (what, "/usr/bin/" + name), 0o644),
        },
        scripts={
            "post": "systemctl daemon-reload",
            "preun": "[ $1 != 0 ] || systemctl disable --now %s.service || true" % name,
            "postun": "systemctl daemon-reload",
        },
    )


# RPM runs the scriptlets of the new package before those of the old one, so the new module is built before the old one
# is removed.
BUILD = "dkms add -m nvidia -v {version} || true\ndkms install --force -m nvidia -v {version} -k $(uname -r)"
UNBUILD = "dkms remove -m nvidia -v {version} --all || true"


def modules(name: str, other: str, license: str) -> Rpm:
    folder = "usr/src/nvidia-{version}/"
    return Rpm(
        name,
        requires=("dkms", *same("nvidia-kmod-common")),
        provides=same("nvidia-kmod"),
        conflicts=(other,),
        files={
            folder + "nvidia.c": (MODULE.replace("{license}", license), 0o644),
            folder + "Makefile": (MAKEFILE, 0o644),
            folder + "dkms.conf": (DKMS, 0o644),
        },
        scripts={"post": BUILD, "preun": UNBUILD},
    )


DRIVER = (
    Rpm(
        "libnvidia-ml",
        copies={"usr/lib64/libnvidia-ml.so.{version}": "libnvidia-ml.so.1"},
        links={"usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.{version}"},
        scripts={"post": "ldconfig", "postun": "ldconfig"},
    ),
    Rpm(
        "nvidia-driver-cuda-libs",
        requires=same("libnvidia-ml"),
        files={"usr/lib64/libcuda.so.{version}": ("stand-in\n", 0o644)},
    ),
    Rpm(
        "nvidia-driver-cuda",
        requires=same("nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced"),
        files={"usr/bin/nvidia-smi": (SMI, 0o755)},
    ),
    Rpm("nvidia-driver", requires=same("nvidia-driver-cuda-libs")),
    Rpm(
        "nvidia-kmod-common",
        requires=same("nvidia-kmod"),
        files={"usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin": ("a stand-in\n", 0o644)},
    ),
    modules("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms", "Dual MIT/GPL"),
    daemon("nvidia-persistenced", "NVIDIA Persistence Daemon (stand-in)"),
    daemon("nvidia-fabricmanager", "NVIDIA fabric manager service (stand-in)", FABRIC),
    daemon("nvidia-imex", "NVIDIA IMEX service (stand-in)"),
)
# A newer kernel that hosts can install.
NEXT_KERNEL = "6.99.0-1"
# Driver versions with precompiled modules for the running kernel, and for the next kernel.
PRECOMPILED, PRECOMPILED_NEXT = ("580.95.05", "580.105.08"), ("580.105.08",)


# NVIDIA offers proprietary modules for Red Hat 9, in streams such as 580. Red Hat's own modules for 10 are open, and 10
# has no streams.
FLAVORS = {"9": ("", "NVIDIA"), "10": ("open-", "Dual MIT/GPL")}


def kmod_name(release: str, base: str) -> str:
    return "kmod-nvidia-%s{version}-%s" % (FLAVORS[release][0], base)


def precompiled(release: str, kernel: str, base: str) -> Rpm:
    """Return the modules for one kernel.

    As in NVIDIA's package, a scriptlet links them.
    """
    source = "usr/lib64/nvidia/{version}/%s/nvidia.c" % base
    place = "/usr/lib/modules/%s/extra/drivers/video/nvidia" % kernel
    return Rpm(
        kmod_name(release, base),
        provides=same("nvidia-kmod"),
        conflicts=("kmod-nvidia-latest-dkms",),
        files={source: (MODULE.replace("{license}", FLAVORS[release][1]), 0o644)},
        ghosts=(place + "/nvidia.ko",),
        scripts={
            "post": "mkdir -p %s; cc -c -o %s/nvidia.ko /%s; depmod %s || true" % (place, place, source, kernel),
            "postun": "depmod %s || true" % kernel,
        },
    )


PROPRIETARY = modules("kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms", "NVIDIA")
SUBNET_MANAGER = Rpm("nvlsm", "2025.06.11", "0", files={NVLSM: (SUBNET, 0o755)})
# The module stream that a site may have enabled before. Its packages are modular, and DNF hides the packages of other
# streams.
MODULES = "nvidia-driver"


def base(release: str, kernel: str) -> tuple[Rpm, ...]:
    """Return packages of the distribution and of EPEL.

    If the host already has the files of a package, the package here is empty.
    """
    headers = "usr/src/kernels/%s/" % kernel
    return (
        Rpm(
            "redhat-release",
            RELEASES[release],
            "0",
            provides=("system-release = %s" % RELEASES[release], "system-release(releasever) = %s" % release),
        ),
        Rpm("bash", "5.1.8", "0", provides=("/bin/sh", "/usr/bin/sh")),
        # EPEL's package requires the headers of the installed kernels in this way, so that they are installed before
        # DKMS builds modules.
        Rpm("dkms", "3.0.13", "0", requires=("kernel-devel-" + kernel,)),
        Rpm("python3-dnf-plugin-versionlock", "4.3.0", "0"),
        Rpm("kernel-headers", "5.14.0", "0"),
        Rpm(
            "kernel-devel-" + kernel,
            "1",
            "0",
            files={
                headers + "Makefile": ("all:\n", 0o644),
                headers + "include/generated/uapi/linux/version.h": ("", 0o644),
                headers + ".config": ("CONFIG_BLK_DEV_INITRD=y\nCONFIG_RD_GZIP=y\n", 0o644),
            },
            links={"usr/lib/modules/%s/build" % kernel: "/usr/src/kernels/" + kernel},
        ),
        Rpm("kernel-devel-matched-" + kernel, "1", "0", requires=("kernel-devel-" + kernel,)),
        Rpm("kernel-core", NEXT_KERNEL.partition("-")[0], "0", provides=("installonlypkg(kernel)",)),
        Rpm("libseccomp", "2.5.2", "0"),
        Rpm("infiniband-diags", "48.0", "0", files={"usr/sbin/ibstat": ("#!/bin/sh\n", 0o755)}),
        # A package of the site that requires this exact driver version.
        Rpm("site-gpu-tools", "1.0", "0", requires=("nvidia-driver-cuda = 3:580.95.05",)),
        # Imitates a package of RPM Fusion.
        Rpm("xorg-x11-drv-nvidia-cuda", "580.95.05", "3", conflicts=("nvidia-driver-cuda",)),
    )


def toolkit(version: str, nvidia_ctk: str) -> tuple[Rpm, ...]:
    def exactly(*names: str) -> tuple[str, ...]:
        return tuple("%s = %s" % (name, version) for name in names)

    return (
        Rpm("libnvidia-container1", version, "0", requires=("libseccomp",)),
        Rpm("libnvidia-container-tools", version, "0", requires=exactly("libnvidia-container1")),
        Rpm("nvidia-container-toolkit-base", version, "0", files={"usr/bin/nvidia-ctk": (nvidia_ctk, 0o755)}),
        Rpm(
            "nvidia-container-toolkit",
            version,
            "0",
            requires=exactly("libnvidia-container-tools", "nvidia-container-toolkit-base"),
        ),
    )


# This exporter serves one sample. It listens on the address that the role's unit sets, or on all addresses like
# NVIDIA's unit.
EXPORTER = """#!/usr/bin/python3
import http.server, sys

host, _, port = sys.argv[sys.argv.index("--address") + 1].rpartition(":")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 30\\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer((host.strip("[]"), int(port)), Handler).serve_forever()
"""


def exporter(version: str) -> tuple[Rpm, ...]:
    """Return DCGM and its exporter with the names of NVIDIA's CUDA repository."""
    core = "datacenter-gpu-manager-4-core"
    return (
        Rpm(core, version, "1", requires=("libseccomp",), files={"usr/bin/nv-hostengine": ("#!/bin/sh\n", 0o755)}),
        Rpm("datacenter-gpu-manager-4-proprietary", version, "1", requires=("%s >= 1:%s" % (core, version),)),
        Rpm(
            "datacenter-gpu-manager-exporter",
            version,
            "1",
            requires=("%s >= 1:%s" % (core, version),),
            files={
                "usr/bin/dcgm-exporter": (EXPORTER, 0o755),
                "usr/lib/systemd/system/nvidia-dcgm-exporter.service": (
                    UNIT % ("DCGM exporter (stand-in)", "/usr/bin/dcgm-exporter --address :9400"),
                    0o644,
                ),
            },
            scripts={
                **({"pre": "echo 'this release ends here' >&2\nexit 1"} if version == EXPORTER_FAILS else {}),
                "post": "systemctl daemon-reload\nsystemctl enable --now nvidia-dcgm-exporter.service || true",
                "postun": "systemctl daemon-reload",
            },
        ),
        # A package of the site that requires DCGM.
        Rpm("site-dcgm-tools", version, "0", requires=(core,)),
    )


SCRIPTS = ("pre", "post", "preun", "postun")
# Tests put a program at this path, for example one that kills DNF during a package's scriptlet.
HOOK = "[ ! -x /run/scriptlet ] || /run/scriptlet {name} {version} {kind}"


def spec(packages: tuple[Rpm, ...], version: str, tree: Path, built: Path, distribution: str) -> str:
    """Write the packages' files below `tree`, and return the text of their spec.

    The packages must have different names.
    """

    def fill(text: str) -> str:
        return text.replace("{version}", version)

    lines = [
        "Name: stand-ins", "Version: 1", "Release: 1", "Summary: stand-ins of the lab", "License: GPL-3.0-or-later",
        "AutoReqProv: no",
        # Switch off debug packages, compression and rpmbuild's own post-install scripts.
        "%global debug_package %{nil}", "%global __os_install_post %{nil}", "%global _build_id_links none",
        "%define _binary_payload w0.gzdio", "%description", "x",
    ]  # fmt: skip
    packages = tuple(replace(package, name=fill(package.name)) for package in packages)
    for package in packages:
        folder = tree / package.name
        lines += ["%%package -n %s" % package.name, "Summary: stand-in of the lab, not the vendor's package"]
        lines += ["Version: " + fill(package.version), "Release: 1" + distribution, "AutoReqProv: no"]
        lines += ["Epoch: " + package.epoch] if package.epoch != "0" else []
        for tag in ("requires", "provides", "conflicts"):
            lines += ["%s: %s" % (tag.capitalize(), fill(text)) for text in getattr(package, tag)]
        lines += ["%%description -n %s" % package.name, "A stand-in."]
        scripts = dict(package.scripts)
        if package.name.startswith("kmod-") and version == FAILS:
            scripts["pre"] = "echo 'this release ends here' >&2\nexit 1"
        for kind in SCRIPTS:
            hook = HOOK.format(name=package.name, version=fill(package.version), kind=kind)
            lines += ["%%%s -n %s" % (kind, package.name), hook, fill(scripts.get(kind, ":"))]
        owned = []
        for name, (text, mode) in package.files.items():
            path = folder / fill(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(BAD_MODULE if version == BROKEN and path.name == "nvidia.c" else fill(text))
            path.chmod(mode)
            owned.append(fill(name))
        for name, source in package.copies.items():
            path = folder / fill(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((built / source).read_bytes())
            owned.append(fill(name))
        for name, target in package.links.items():
            path = folder / fill(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(fill(target))
            owned.append(fill(name))
        lines += ["%%files -n %s" % package.name, *("/" + name for name in owned)]
        for name in package.ghosts:
            # rpmbuild requires that the file exists.
            (folder / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1:]).touch()
            lines.append("%ghost " + name)
    lines += ["%install", "mkdir -p %{buildroot}"]
    lines += [
        "cp -a %s/. %%{buildroot}/" % (Path("/work") / tree.name / package.name)
        for package in packages
        if (tree / package.name).exists()
    ]
    return "\n".join(lines) + "\n"


def modular(versions: tuple[str, ...], names: tuple[str, ...], distribution: str) -> str:
    """Return the metadata of the module nvidia-driver as in NVIDIA's repository.

    Each branch has a stream for DKMS. A branch with precompiled modules has a second stream for them.
    """
    documents = []
    kmods = tuple(kmod_name("9", base) for base in (os.uname().release, NEXT_KERNEL))
    for branch in sorted({version.split(".")[0] for version in versions}):
        own = [version for version in versions if version.startswith(branch + ".")]
        streams = {branch + "-dkms": names}
        if set(own) & set(PRECOMPILED):
            streams[branch] = (*(name for name in names if "dkms" not in name), *kmods)
        for stream, parts in streams.items():
            rpms = [
                "%s-3:%s-1%s.x86_64" % (name.replace("{version}", version), version, distribution)
                for version in own
                for name in parts
            ]
            documents.append(
                "---\ndocument: modulemd\nversion: 2\ndata:\n  name: %s\n  stream: '%s'\n  version: 1\n  context: lab\n"
                "  arch: x86_64\n"
                "  summary: stand-in\n  description: >-\n    A stand-in.\n  license:\n    module: [MIT]\n  profiles:\n"
                "    default:\n      rpms: [nvidia-driver-cuda]\n  artifacts:\n    rpms:\n%s...\n"
                % (MODULES, stream, "".join("    - %s\n" % rpm for rpm in rpms))
            )
    return "".join(documents)
