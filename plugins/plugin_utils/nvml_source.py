# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify the files of nvidia-ml-py that are installed on hosts.

The package runs as root on every host. So the name of a file from an index or the controller is not enough: the
collection or the inventory must have its hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from ..module_utils.errors import FleetError
from . import python_pins
from .python_pins import Pin

NAME = "nvidia-ml-py"
_FILES = Path(__file__).resolve().parents[2] / "roles" / "gpu_layout" / "files"
#: REQUIREMENTS has the package's version and the wheels' hashes. FILE_HASH has the hash of pynvml.py in the format of
#: sha256sum.
REQUIREMENTS, FILE_HASH = _FILES / "nvml-requirements.txt", _FILES / "pynvml.sha256"


class NvmlSourceError(FleetError):
    """The file does not exist, or its hash is unknown."""


@dataclass(frozen=True)
class Shipped:
    """The collection's hashes of the wheels, and of the pynvml.py in them."""

    wheels: Pin
    file: str


@dataclass(frozen=True)
class Request:
    """The values of the variables `gpu_layout_nvml_*`."""

    source: str
    version: str
    wheel: str
    hashes: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Build a request from a mapping of variables.

        Raises NvmlSourceError if a hash is invalid.
        """
        given = [str(text) for text in values.get("gpu_layout_nvml_hashes") or ()]
        for text in given:
            if not python_pins.hash_of(text):
                raise NvmlSourceError(
                    "gpu_layout_nvml_hashes",
                    "%r is not a hash" % text,
                    "Write sha256: and 64 hexadecimal digits. `pip hash FILE` prints them after --hash=.",
                )
        return cls(
            str(values["gpu_layout_nvml_source"]),
            str(values["gpu_layout_nvml_version"]),
            str(values["gpu_layout_nvml_wheel"]),
            tuple(python_pins.hash_of(text) for text in given),
        )


@dataclass(frozen=True)
class ControllerFile:
    """The verified pynvml.py of the Python that runs Ansible."""

    path: Path
    sha256: str


def shipped() -> Shipped:
    """Read the hashes that the collection contains."""
    (wheels,) = python_pins.read(REQUIREMENTS.read_text(encoding="utf-8"))
    return Shipped(wheels, FILE_HASH.read_text(encoding="utf-8").split()[0])


def pin(request: Request, known: Shipped) -> Pin:
    """Return the package's version and the hashes for pip.

    Raises NvmlSourceError if no hash of this version is known.
    """
    if request.hashes:
        return Pin(NAME, request.version, request.hashes)
    if request.version != known.wheels.version:
        raise NvmlSourceError(
            "gpu_layout_nvml_version",
            "it is %s, but the collection has only hashes of %s and gpu_layout_nvml_hashes is empty"
            % (request.version, known.wheels.version),
            "Set gpu_layout_nvml_hashes to the hashes of its wheels (pip download --no-deps %s==%s, then pip hash *.whl), or "
            "remove gpu_layout_nvml_version." % (NAME, request.version),
        )
    return known.wheels


def wheel_hashes(request: Request, known: Shipped) -> tuple[str, ...]:
    """Return the allowed hashes for the file `gpu_layout_nvml_wheel`."""
    return (*known.wheels.sha256, *request.hashes)


def controller_file(request: Request, known: Shipped) -> ControllerFile:
    """Find pynvml.py in the Python that runs Ansible, and verify it.

    Raises NvmlSourceError if the file is missing or has an unknown hash.
    """
    spec = importlib.util.find_spec("pynvml")
    if spec is None or not spec.origin or Path(spec.origin).name != "pynvml.py":
        raise NvmlSourceError(
            "gpu_layout_nvml_source",
            "it is controller, but the Python that runs Ansible has no pynvml.py of the package %s" % NAME,
            "Install it on the controller (%s), or choose another gpu_layout_nvml_source." % _install(),
        )
    path = Path(spec.origin)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in (known.file, *request.hashes):
        raise NvmlSourceError(
            "gpu_layout_nvml_source",
            "it is controller, but the SHA-256 of %s is %s, neither that of %s %s nor in gpu_layout_nvml_hashes"
            % (path, digest, NAME, known.wheels.version),
            "Install that version (%s). Or, if you trust this file, add sha256:%s to gpu_layout_nvml_hashes."
            % (_install(), digest),
        )
    return ControllerFile(path, digest)


def wheel_file(request: Request, known: Shipped) -> Path:
    """Return the path of the inventory's wheel, after verification.

    Raises NvmlSourceError if the file is missing or has an unknown hash.
    """
    path = Path(request.wheel).expanduser().absolute()
    if not request.wheel or not path.is_file():
        raise NvmlSourceError(
            "gpu_layout_nvml_wheel",
            "the controller has no file %r" % request.wheel,
            "Set it to the path of a wheel of %s." % NAME,
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in wheel_hashes(request, known):
        raise NvmlSourceError(
            "gpu_layout_nvml_wheel",
            "the SHA-256 of %s is %s, neither that of %s %s nor in gpu_layout_nvml_hashes"
            % (path, digest, NAME, known.wheels.version),
            "Use the wheel of that version. Or, if you trust this one, add sha256:%s to gpu_layout_nvml_hashes."
            % digest,
        )
    return path


def _install() -> str:
    return "pip install --require-hashes --only-binary=:all: --requirement %s" % REQUIREMENTS
