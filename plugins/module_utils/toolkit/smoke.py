# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a test container with the GPUs, without a registry.

The image has the system libraries that nvidia-smi needs, but not nvidia-smi itself and the driver's libraries. The
container toolkit must add these together with the devices.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Callable

from ..errors import ApplyError
from . import observe
from .engines import last_line

_DEVICE = "nvidia.com/gpu=all"
_UUID = re.compile(r"UUID: ([^)\s]+)")
_LIBRARY = re.compile(r"(?:^|\s)(/\S+)\s+\(0x", re.MULTILINE)


def smoke_test(call: Callable[..., Any]) -> str:
    """Start a container that must see all GPUs, and return its output.

    Raises ApplyError.
    """
    engine = next((name for name in ("podman", "docker") if observe.is_installed(name)), None)
    if engine is None:
        return "no smoke test: neither podman nor docker is installed"
    here = call(["nvidia-smi", "-L"])
    expected = _UUID.findall(here.stdout)
    if here.returncode != 0 or not expected:
        problem = (here.stderr or here.stdout).strip() or "it lists none"
        raise _failed("nvidia-smi -L fails on the host itself: %s" % problem, "Fix the driver first.")
    image = "localhost/openfleet-smoke-test:%d" % os.getpid()
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        _write_image(file.name, call)
        made = call([engine, "import", file.name, image])
    if made.returncode != 0:
        raise _failed("%s import failed: %s" % (engine, last_line(made.stderr)), "See to %s." % engine)
    # All releases of Docker support the toolkit's runtime, but only later ones support CDI.
    gpus = ["--device=" + _DEVICE] if engine == "podman" else ["--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all"]
    try:
        done = call([engine, "run", "--rm", "--network=none", *gpus, image, "nvidia-smi", "-L"])
    finally:
        call([engine, "image", "rm", "--force", image])
    if done.returncode != 0:
        raise _failed(
            "a container with %s does not start: %s" % (_DEVICE, last_line(done.stderr or done.stdout)),
            "Try it by hand: %s run --rm %s IMAGE nvidia-smi -L." % (engine, " ".join(gpus)),
        )
    seen = _UUID.findall(done.stdout)
    if sorted(seen) != sorted(expected):
        raise _failed(
            "it sees %s, and the host has %s" % (", ".join(seen) or "no GPU", ", ".join(expected)),
            "Check that the specification lists the host's devices: nvidia-ctk cdi list.",
        )
    return "a container of %s sees %d devices, the host's own" % (engine, len(seen))


def _write_image(path: str, call: Callable[..., Any]) -> None:
    program = call(["sh", "-c", "command -v nvidia-smi"]).stdout.strip()
    libraries = [name for name in _LIBRARY.findall(call(["ldd", program]).stdout) if "libnvidia" not in name]
    if not libraries:
        raise _failed("the libraries of %s cannot be determined" % program, "Check that ldd is installed.")
    with tarfile.open(path, "w") as image:
        for folder in ("dev", "etc", "proc", "run", "sys", "tmp", "usr/bin", "var"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            image.addfile(entry)
        for name in libraries:
            image.add(str(Path(name).resolve()), name.lstrip("/"))


def _failed(problem: str, cure: str) -> ApplyError:
    return ApplyError("smoke test", problem, cure, outcome="new")
