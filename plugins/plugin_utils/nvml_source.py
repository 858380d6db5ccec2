# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of the package nvidia-ml-py hosts may get: by hashes that the collection ships, or that the inventory names.

It runs as root on every host, so that neither an index nor a file on the controller is taken by its name alone.
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
#: The package and the hashes of its wheels; and the hash of the one file in it, as sha256sum writes it.
REQUIREMENTS, FILE_HASH = _FILES / "nvml-requirements.txt", _FILES / "pynvml.sha256"


class NvmlSourceError(FleetError):
    """Nothing is known that says whether the file is the right one."""


@dataclass(frozen=True)
class Shipped:
    """What the collection vouches for: the wheels of a version, and pynvml.py in them."""

    wheels: Pin
    file: str


@dataclass(frozen=True)
class Request:
    """The role's variables gpu_layout_nvml_*."""

    source: str
    version: str
    wheel: str
    hashes: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """From the variables by their names. Raises NvmlSourceError for a hash that is none."""
        given = [str(text) for text in values.get("gpu_layout_nvml_hashes") or ()]
        for text in given:
            if not python_pins.hash_of(text):
                raise NvmlSourceError(
                    "gpu_layout_nvml_hashes",
                    "%r is no hash" % text,
                    "Write sha256: and 64 hexadecimal digits, as `pip hash FILE` prints them after --hash=.",
                )
        return cls(
            str(values["gpu_layout_nvml_source"]),
            str(values["gpu_layout_nvml_version"]),
            str(values["gpu_layout_nvml_wheel"]),
            tuple(python_pins.hash_of(text) for text in given),
        )


@dataclass(frozen=True)
class ControllerFile:
    """pynvml.py of the Python that runs Ansible, whose hash is known."""

    path: Path
    sha256: str


def shipped() -> Shipped:
    (wheels,) = python_pins.read(REQUIREMENTS.read_text(encoding="utf-8"))
    return Shipped(wheels, FILE_HASH.read_text(encoding="utf-8").split()[0])


def pin(request: Request, known: Shipped) -> Pin:
    """What pip installs from an index. Raises NvmlSourceError where no hash is known."""
    if request.hashes:
        return Pin(NAME, request.version, request.hashes)
    if request.version != known.wheels.version:
        raise NvmlSourceError(
            "gpu_layout_nvml_version",
            "it is %s, and gpu_layout_nvml_hashes is empty; the collection has the hashes of %s alone"
            % (request.version, known.wheels.version),
            "Set gpu_layout_nvml_hashes to the hashes of its wheels (pip download --no-deps %s==%s, then pip hash *.whl), or "
            "leave gpu_layout_nvml_version out." % (NAME, request.version),
        )
    return known.wheels


def wheel_hashes(request: Request, known: Shipped) -> tuple[str, ...]:
    """Of the wheels that gpu_layout_nvml_wheel may name."""
    return (*known.wheels.sha256, *request.hashes)


def controller_file(request: Request, known: Shipped) -> ControllerFile:
    """pynvml.py of the Python that runs Ansible. Raises NvmlSourceError where there is none, or another one."""
    found = importlib.util.find_spec("pynvml")
    if found is None or not found.origin or Path(found.origin).name != "pynvml.py":
        raise NvmlSourceError(
            "gpu_layout_nvml_source",
            "it is controller, and the Python that runs Ansible has no pynvml.py of the package %s" % NAME,
            "Install it there (%s), or choose another gpu_layout_nvml_source." % _install(),
        )
    path = Path(found.origin)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in (known.file, *request.hashes):
        raise NvmlSourceError(
            "gpu_layout_nvml_source",
            "it is controller, and %s has the SHA-256 %s, which is not that of %s %s, nor in gpu_layout_nvml_hashes"
            % (path, digest, NAME, known.wheels.version),
            "Install that version (%s); or, if this file is the right one, add sha256:%s to gpu_layout_nvml_hashes."
            % (_install(), digest),
        )
    return ControllerFile(path, digest)


def wheel_file(request: Request, known: Shipped) -> Path:
    """The wheel that the inventory names. Raises NvmlSourceError where there is none, or another one."""
    path = Path(request.wheel).expanduser().absolute()
    if not request.wheel or not path.is_file():
        raise NvmlSourceError(
            "gpu_layout_nvml_wheel",
            "there is no such file on the controller: %r" % request.wheel,
            "Name a wheel of %s." % NAME,
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in wheel_hashes(request, known):
        raise NvmlSourceError(
            "gpu_layout_nvml_wheel",
            "%s has the SHA-256 %s, which is not that of %s %s, nor in gpu_layout_nvml_hashes"
            % (path, digest, NAME, known.wheels.version),
            "Take the wheel of that version; or, if this one is right, add sha256:%s to gpu_layout_nvml_hashes."
            % digest,
        )
    return path


def _install() -> str:
    return "pip install --require-hashes --only-binary=:all: --requirement %s" % REQUIREMENTS
