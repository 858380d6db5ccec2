# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the packages, modules, devices, firmware and files of a host."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Iterable, Sequence

from .. import systemd
from ..packages import keys
from ..packages.host_files import read_text, read_texts
from ..packages.registry import PackageManager
from ..processes.command import Run, program, run_to_end
from ..vendors.nvidia.nvml.pci import DEVICES, nvidia_gpus
from .model import Gpu, Host, SecureBoot, Unit

#: PCI ids of NVSwitches of the generations V100, A100 and H100, which are NVIDIA bridges
#: (https://pci-ids.ucw.cz/read/PC/10de).
_NVSWITCH_IDS = frozenset(("0x1ac0", "0x1ac2", "0x1af1", "0x22a3"))
#: On Blackwell boards, NVSwitches are not PCI devices. Their ConnectX-7 functions have SW_MNG in their vital product
#: data (Fabric Manager guide, "Systems Using Fourth Generation NVSwitches").
_CONNECTX_7 = ("0x15b3", "0x1021")
_BRIDGE_MARK = b"SW_MNG"
_LIBRARY_DIRECTORIES = ("/usr/lib/%s-linux-gnu", "/usr/lib64", "/usr/lib")
#: Folder of the .run file's installer. It also contains backups of replaced files.
_INSTALLER_LOG = "/var/lib/nvidia/log"
#: Root of the driver container, and the file that shows that the container loaded a driver (GPU operator,
#: assets/state-driver).
_DRIVER_CONTAINER = ("/run/nvidia/driver/usr", "/run/nvidia/validations/.driver-ctr-ready")
_DKMS = "/var/lib/dkms/nvidia"
_UNIT_FIELDS = ("UnitFileState", "ActiveState")
_EFI = "/sys/firmware/efi/efivars"
_SECURE_BOOT = _EFI + "/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
#: Certificates of DKMS and of Ubuntu's shim.
_CERTIFICATES = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")


def distribution(release: str) -> str:
    """Return the distribution from the text of os-release.

    Examples: debian-12, ubuntu-24.04, el-9. A rebuild of RHEL counts as RHEL.
    """
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line and not line.startswith("#"))
    fields = {name: value.strip().strip("\"'") for name, value in fields.items()}
    name, version = fields.get("ID", ""), fields.get("VERSION_ID", "")
    if name in ("debian", "ubuntu"):
        return "%s-%s" % (name, version)
    if name == "rhel" or "rhel" in fields.get("ID_LIKE", "").split():
        return "el-%s" % version.split(".")[0]
    return "%s-%s" % (name or "unknown", version)


def look(
    manager: PackageManager,
    paths: Iterable[str],
    keyring: str,
    units: Sequence[str],
    interrupted: str,
    call: Run = run_to_end,
) -> Host:
    """Return the current state of the host.

    `paths` are the files whose text is included.
    """
    system = platform.uname()
    switches, bridges = _fabric()
    return Host(
        distribution=distribution(read_text("/etc/os-release") or ""),
        architecture=system.machine,
        kernel=system.release,
        gpus=tuple(Gpu(found["address"], found["device_id"]) for found in nvidia_gpus()),
        nvswitches=switches,
        nvlink_bridges=bridges,
        loaded=(read_text("/sys/module/nvidia/version") or "").strip(),
        on_disk=_module_version(system.release, call),
        library=_library_version(system.machine),
        nouveau_loaded=Path("/sys/module/nouveau").exists(),
        umad_loaded=Path("/sys/module/ib_umad").exists(),
        dracut=bool(program("dracut")),
        headers=Path("/lib/modules", system.release, "build").exists(),
        secure_boot=_secure_boot(),
        packages=manager.installed(),
        units=_units(units, call),
        files=read_texts(paths),
        key_fingerprints=keys.of(keyring),
        runfile="/usr/bin/nvidia-uninstall" if Path("/usr/bin/nvidia-uninstall").exists() else "",
        dkms=tuple(sorted(path.name for path in Path(_DKMS).glob("[0-9]*.[0-9]*") if path.is_dir())),
        installer_log=_INSTALLER_LOG if Path(_INSTALLER_LOG).exists() else "",
        driver_container=next((path for path in _DRIVER_CONTAINER if Path(path).exists()), ""),
        interrupted=interrupted,
    )


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _fabric(devices: str = DEVICES) -> tuple[int, int]:
    """Return the number of NVSwitches on the PCI bus, and of ConnectX-7 bridges.

    The bridges lead to NVSwitches that are not on the PCI bus.
    """
    switches = bridges = 0
    for folder in sorted(Path(devices).glob("*")):
        ids = tuple((read_text(str(folder / name)) or "").strip().lower() for name in ("vendor", "device"))
        switches += ids[0] == "0x10de" and ids[1] in _NVSWITCH_IDS
        bridges += ids == _CONNECTX_7 and _BRIDGE_MARK in _bytes(str(folder / "vpd"))
    return switches, bridges


def _module_version(kernel: str, call: Run) -> str:
    if not Path("/lib/modules", kernel).is_dir():
        return ""
    done = call(["modinfo", "-k", kernel, "-F", "version", "nvidia"])
    return done.stdout.strip() if done.returncode == 0 else ""


def _library_version(machine: str) -> str:
    for pattern in _LIBRARY_DIRECTORIES:
        folder = pattern % machine if "%" in pattern else pattern
        path = Path(folder, "libnvidia-ml.so.1")
        if path.exists():
            return path.resolve().name.partition(".so.")[2]
    return ""


def _secure_boot() -> SecureBoot:
    # The EFI variable has four bytes of attributes, followed by the value.
    enabled = _bytes(_SECURE_BOOT)[4:5] == b"\x01"
    certificate = next((path for path in _CERTIFICATES if _bytes(path)), "")
    # The firmware has lists of certificates in DER format: the user's (MOK) and the vendor's (db).
    lists = [path for name in ("MokListRT", "db-") for path in Path(_EFI).glob(name + "*")] if enabled else []
    enrolled = bool(certificate) and any(_bytes(certificate) in _bytes(str(path)) for path in lists)
    return SecureBoot(enabled, certificate, enrolled)


def _units(names: Sequence[str], call: Run) -> dict[str, Unit]:
    return {
        name: Unit(True, fields["UnitFileState"] in ("enabled", "static"), fields["ActiveState"] == "active")
        for name, fields in systemd.loaded(call, names, _UNIT_FIELDS).items()
    }
