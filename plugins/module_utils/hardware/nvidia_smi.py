# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs with nvidia-smi, to compare them with NVML.

The command is ``nvidia-smi -q -x``.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from ..processes.command import FAILURES, Run, run_tool

#: Path in a GPU's XML, by name in the report.
_OF_GPU = {
    "name": "product_name",
    "uuid": "uuid",
    "serial": "serial",
    "minor_number": "minor_number",
    "pci_address": "pci/pci_bus_id",
    "gpu_part_number": "gpu_part_number",
    "memory_total": "fb_memory_usage/total",
    "mig_current": "mig_mode/current_mig",
    "mig_pending": "mig_mode/pending_mig",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence_mode",
}
_COMMAND = ["nvidia-smi", "-q", "-x"]


def read_nvidia_smi(run: Run = run_tool) -> dict[str, Any]:
    """Return the versions and GPUs from nvidia-smi.

    If nvidia-smi fails, `problem` has the reason.
    """
    try:
        done = run(_COMMAND)
    except FileNotFoundError:
        return {"problem": "nvidia-smi is not installed"}
    except FAILURES as error:
        return {"problem": "nvidia-smi cannot be run: %s" % error}
    if done.returncode != 0:
        return {
            "problem": "nvidia-smi ended with status %d: %s" % (done.returncode, " ".join(done.stdout.split()[-20:]))
        }
    return parse(done.stdout)


def parse(text: str) -> dict[str, Any]:
    """Return the data in the XML.

    Values are texts as in the XML, or None for missing elements.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return {"problem": "nvidia-smi printed no XML: %s" % error}
    return {
        "problem": None,
        "driver_version": root.findtext("driver_version"),
        "cuda_version": root.findtext("cuda_version"),
        "gpus": [_gpu(gpu) for gpu in root.findall("gpu")],
    }


def _gpu(gpu: ElementTree.Element) -> dict[str, Any]:
    values: dict[str, Any] = {name: gpu.findtext(path) for name, path in _OF_GPU.items()}
    values["mig_devices"] = [
        [device.findtext("gpu_instance_id"), device.findtext("compute_instance_id")]
        for device in gpu.findall("mig_devices/mig_device")
    ]
    return values
