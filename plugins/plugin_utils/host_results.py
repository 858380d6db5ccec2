# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read results of modules on hosts. Pure.

Only keys that the controller uses are kept, and their values are checked.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Mapping

from ..module_utils.errors import FleetError
from ..module_utils.model import LostGpu
from .host_values import MOST_ENTRIES, MOST_TEXT, HostValueError, Reader, bounded, shown, text
from .techniques.registry import TECHNIQUES

#: Maximum numbers of GPUs and of instances per GPU. No host has more than 16 GPUs (two HGX baseboards) with 7 instances each.
_GPUS, _PARTS = 64, 64
#: Maximum number of a technique's daemons or tenants.
_ROWS = 1024

_PLACEMENT = {"start!": "small", "size!": "small"}
_PROCESS = {"pid!": "count", "kind": "name", "name": "text"}
_HOLDER = {
    "gpu_uuid": "gpu_uuid",
    "gpu_instance_id": "small",
    "kind!": "name",
    "who!": "text",
    "pid": "count",
    "user": "text",
    "command": "text",
    "unit_or_container": "text",
    "job": "text",
    "watches": "flag",
    "started_seconds": "number",
    "listens": "flag",
    "clients": "count",
}
_PROFILE = {
    "name!": "profile",
    **dict.fromkeys(("enum!", "profile_id!", "compute_slices!", "multiprocessors!", "max_instances!"), "small"),
    **dict.fromkeys(("decoders!", "encoders!", "jpegs!", "ofas!"), "small"),
    "memory_mib!": "count",
    "placements!": [_PLACEMENT, _PARTS],
}
_COMPUTE_INSTANCE = {
    "id!": "small",
    "compute_slices!": "small",
    "placement!": _PLACEMENT,
    "mig_uuid": "mig_uuid",
    "processes": [_PROCESS],
}
_INSTANCE = {
    "id!": "small",
    "profile!": "profile",
    "placement!": _PLACEMENT,
    "compute_instances": [_COMPUTE_INSTANCE, _PARTS],
    "processes": [_PROCESS],
    "holders": [_HOLDER],
}
_MIG = {
    **dict.fromkeys(("capable", "enabled", "pending"), "flag"),
    "profiles": [_PROFILE, _PARTS],
    "instances": [_INSTANCE, _PARTS],
}
_GPU = {
    "index!": "small",
    "uuid!": "gpu_uuid",
    "name!": "model",
    "pci_address": "pci_address",
    "architecture": "text",
    "compute_capability": "version",
    "memory_total_bytes": "count",
    "compute_mode": "name",
    "numa_node": "small",
    "nvlinks": [{"link!": "small", "remote_pci_address": "pci_address"}, _PARTS],
    "processes": [_PROCESS],
    "holders": [_HOLDER],
    "mig": _MIG,
}
_GPU_INFO = {
    **dict.fromkeys(("driver_version", "nvml_version", "cuda_version"), "version"),
    "simulated": "flag",
    "gpus!": [_GPU, _GPUS],
    **{each.rows: [each.row_format, _ROWS] for each in TECHNIQUES if each.rows},
    "lost_gpus": [
        {
            "index": "small",
            "problem": "text",
            "uuid": "gpu_uuid",
            "pci_address": "pci_address",
            "name": "model",
            "call": "name",
            "code": "small",
            "code_name": "name",
        },
        _GPUS,
    ],
}

_CHANGED_GPU = {
    "index!": "small",
    "uuid": "gpu_uuid",
    "name!": "model",
    "entry": "text",
    **dict.fromkeys(("asked!", "before!", "after!"), "text"),
    "changed!": "flag",
    "placement_units": "small",
    "instances!": [
        {"profile!": "profile", "placement!": _PLACEMENT, "mig_uuids": ["mig_uuid?", _PARTS]},
        _PARTS,
    ],
}
_BUSY = [{"what!": "text", "who!": ["text"], "pods": ["pod_uid"]}]
#: Maximum number of lines in a plan, which has a line for each GPU, daemon and tenant.
_LINES = 2048
#: Keys of the counts: created, destroyed and kept instances, and changed GPUs.
COUNTS = ("create", "destroy", "keep", "gpus_changed")
#: Format of a plan that the controller made for the GPUs on the host's PCI bus.
_FORECAST = {
    "checked": "flag",
    "plan": ["text", _LINES],
    "counts": dict.fromkeys(COUNTS, "count"),
    "gpus": "count",
}
_LAYOUT = {
    "msg": "text",
    "counts": dict.fromkeys(COUNTS, "count"),
    "gpus": [_CHANGED_GPU, _GPUS],
    "busy": _BUSY,
    "forecast": _FORECAST,
    "unmanaged": [{"index!": "small", "uuid!": "gpu_uuid", "action!": "text", "text!": "text"}, _GPUS],
}
_NVML = {"call": "text", "code": "number", "code_name": "text", "gpu": "text"}
#: Maximum number of lines in a message. A message about a layout has one per problem.
_MOST_MESSAGE_LINES = 200
# Ansible's messages about a module without a result. They differ between ansible-core 2.19 and earlier releases.
_NO_RESULT = re.compile(r"Module result deserialization failed|MODULE FAILURE|No start of json char found")
_DIED = (
    "The host stopped answering while the module ran. Check its power and its kernel log (journalctl --boot=-1 --dmesg), then "
    "run again. A run completes or undoes an interrupted change."
)
#: Keys that Ansible adds if a module did not finish, and their values' maximum number of characters.
_OUTPUTS, _MOST_OUTPUT = ("module_stdout", "module_stderr"), 4000
#: Documented return keys of openfleet.gpu.layout, and keys that Ansible adds for background tasks.
_LAYOUT_KEYS = (
    *(
        "plan",
        "plan_lines",
        "plan_data",
        "counts",
        "gpus",
        "missing",
        "driver_present",
        "pynvml_sha256",
        "lost",
        "unmanaged",
        "recovered",
        "pci_gpus",
        "busy",
        "ended",
    ),
    *(
        "followed",
        "reboot_required",
        "outcome",
        "steps_done",
        "where",
        "problem",
        "cure",
        "problems",
        "diff",
    ),
    *("started", "finished", "ansible_job_id", "results_file"),
)
_LAYOUT_ENTRIES = 100_000
#: Keys of a file's diff in a result.
_DIFF = ("before_header", "after_header", "before", "after")
_PLAN = {
    "driver_present": "flag",
    "msg": "text",
    "plan_lines": [{"index": "small", "uuid": "gpu_uuid", "text!": "text", "unmanaged": "flag"}, _LINES],
    "counts": dict.fromkeys(COUNTS, "count"),
    "busy": _BUSY,
    "forecast": _FORECAST,
}


def gpu_info(host: str, result: Mapping[str, Any], *, tenants_whole: bool = False) -> dict[str, Any]:
    """Return a host's checked result of openfleet.gpu.gpu_info.

    Raises HostValueError if a value is invalid.

    If `tenants_whole` is true, each tenant on a GPU must have its name and quota. gpu_info returns both, `gpu-layout
    holders` does not. If a GPU has too many holders, one holder of the kind "unknown" replaces the rest, so that no
    change is proposed for this GPU.
    """
    read = Reader(host).read("", result, _GPU_INFO)
    if tenants_whole:
        _check_tenants(host, read)
    for row, sent in zip(read["gpus"], result["gpus"]):
        parts = zip((row.get("mig") or {}).get("instances") or (), (sent.get("mig") or {}).get("instances") or ())
        for part, sent_part in ((row, sent), *parts):
            _add_unread_holders(part, sent_part, row["uuid"])
    return read


def lost_gpu(row: Mapping[str, Any]) -> LostGpu:
    """Convert a checked row of `lost_gpus` to a LostGpu."""
    known = {name: row.get(name) for name in ("uuid", "pci_address", "name", "call", "code", "code_name")}
    return LostGpu(row.get("index"), row.get("problem") or "", **known)


def lost_notes(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each GPU that does not work.

    `results` has hosts' checked results of gpu_info.
    """
    return [
        "%s: %s" % (host, lost_gpu(row))
        for host, result in sorted(results.items())
        for row in result.get("lost_gpus") or ()
    ]


def gpu_info_of_all(
    results: Mapping[str, Any], *, tenants_whole: bool = False
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return (checked results by host, sentences about hosts without a result).

    A host that was not queried is in neither. See gpu_info for `tenants_whole`.
    """
    read: dict[str, dict[str, Any]] = {}
    unanswered = []
    for host, result in results.items():
        if not isinstance(result, Mapping):
            continue
        reason = _no_answer(result)
        if reason:
            unanswered.append("%s: %s" % (text(host), reason))
        elif "gpus" in result:
            try:
                read["".join(host)] = gpu_info(host, result, tenants_whole=tenants_whole)
            except HostValueError as error:
                unanswered.append(str(error))
    return read, unanswered


def _no_answer(result: Mapping[str, Any]) -> str:
    """Return why a result has no GPUs.

    Returns "" if it has GPUs, or if the host was not queried.
    """
    if result.get("unreachable") is True:
        return "it could not be reached: %s" % text(result.get("msg") or "")
    if result.get("failed") is True and "gpus" not in result:
        return "reading its GPUs failed: %s" % text(result.get("msg") or "")
    if result.get("driver_present") is False:
        return "its GPUs were not read: %s" % text(result.get("driver_absent_reason") or "it has no NVIDIA driver")
    return ""


def _check_tenants(host: str, read: Mapping[str, Any]) -> None:
    """Raise HostValueError if a tenant on a GPU has no name or quota.

    An entry without a GPU is not checked. If the tenants could not be read, it may only have a problem.
    """
    for technique in TECHNIQUES:
        for number, row in enumerate(read.get(technique.rows) or ()):
            for name in technique.row_needs if row.get("gpus") else ():
                if row.get(name) is None:
                    where = "%s[%d].%s" % (technique.rows, number, name)
                    raise HostValueError(host, where, None, "a value of a tenant on a GPU")


def _add_unread_holders(read: dict[str, Any], sent: Mapping[str, Any], uuid: str) -> None:
    left_out = len(sent.get("holders") or ()) - len(read.get("holders") or ())
    if left_out > 0:
        who = "%d more, which are not listed (at most %d of a GPU)" % (left_out, MOST_ENTRIES)
        read["holders"].append({"gpu_uuid": uuid, "gpu_instance_id": None, "kind": "unknown", "who": who})


def layout(host: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that reports need from a result of openfleet.gpu.layout.

    These are GPUs, counts and blocking workloads. Raises HostValueError if a value is invalid.
    """
    return Reader(host).read("", result, _LAYOUT)


def plan(host: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan from a result of openfleet.gpu.layout in check mode.

    The plan has lines and blocking workloads. Raises HostValueError if a value is invalid.
    """
    return Reader(host).read("", result, _PLAN)


def failure(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the keys that describe a module's failure.

    Returns None if the module did not fail.
    """
    if not (result.get("failed") or result.get("unreachable")):
        return None
    failed: dict[str, Any] = {"failed": True, "msg": _message(result)}
    if result.get("unreachable"):
        failed["unreachable"] = True
    if result.get("host_fault") is True:
        failed["host_fault"] = True
    failed.update({key: text(result[key], _MOST_OUTPUT) for key in _OUTPUTS if result.get(key)})
    if result.get("nvml"):
        # Add details for playbooks. Invalid values are dropped.
        with contextlib.suppress(HostValueError):
            failed["nvml"] = Reader("").read("nvml", result["nvml"], _NVML)
    return failed


def incomplete(host: str, key: str) -> dict[str, Any]:
    """Return a failure for a successful result without a required key."""
    problem = "the result of the host has no %s, as if another module had run" % key
    error = FleetError(host, problem, "Find out who changed the programs that root runs on this host.")
    return {"failed": True, "msg": str(error)}


def done(result: Mapping[str, Any]) -> list[str]:
    """Return a result's sentences about what the module did."""
    given = result.get("done")
    return [text(sentence) for sentence in (given if isinstance(given, list) else [])[:MOST_ENTRIES]]


def installation(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documented keys of an installing module's result.

    If the module failed, returns its failure instead. Texts are made printable and shortened.
    """
    failed = failure(result)
    if failed is not None:
        return failed
    read: dict[str, Any] = {"changed": result.get("changed") is True, "done": done(result)}
    if isinstance(result.get("diff"), list):
        files = [file for file in result["diff"][:MOST_ENTRIES] if isinstance(file, Mapping)]
        read["diff"] = [{key: _lines(file[key]) for key in _DIFF if key in file} for file in files]
    if "archive" in result:
        read["archive"] = text(result["archive"])
    if isinstance(result.get("missing"), list):
        read["missing"] = [text(name) for name in result["missing"][:MOST_ENTRIES]]
    return {**read, **_warnings(result)}


def layout_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documented keys of a result of openfleet.gpu.layout.

    Texts are made printable and shortened.
    """
    read = {key: bounded(result[key], _LAYOUT_ENTRIES) for key in _LAYOUT_KEYS if key in result}
    read.update(_warnings(result))
    if isinstance(result.get("diff"), Mapping):
        read["diff"] = {text(key): _lines(value) for key, value in result["diff"].items()}
    if "msg" in result:
        read["msg"] = _message(result)
    failed = failure(result) or {}
    plan_data = result.get("plan_data")
    if plan_data is not None and not isinstance(plan_data, Mapping):
        del read["plan_data"]
        # Report the failure here, so that only this host fails. One task saves the plans of all hosts.
        failed = failed or _no_plan(plan_data)
    return {**read, "changed": result.get("changed") is True, **failed}


def _no_plan(value: Any) -> dict[str, Any]:
    error = HostValueError("", "", value, "a plan")
    return {"failed": True, "host_fault": True, "msg": "plan_data: %s. %s" % (error.problem, error.cure)}


def _warnings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's warnings as texts.

    Since ansible-core 2.19, a warning is an object, with the text in its event.
    """
    given = result.get("warnings")
    if not isinstance(given, list):
        return {}
    texts = [item if isinstance(item, str) else getattr(getattr(item, "event", None), "msg", item) for item in given]
    return {"warnings": [text(warning) for warning in texts[:MOST_ENTRIES]]}


def _message(result: Mapping[str, Any]) -> str:
    message = _lines(result.get("msg") or "the module failed without a reason").rstrip("\n")
    output = _last_output(result)
    if not output and _NO_RESULT.search(message):
        return _DIED
    if not output or output in message:
        return message
    first = " ".join(message.split()).rstrip(".")
    cure = "Check on the host that Python runs and that the account can become root."
    return "%s. The host printed: %s. %s" % (first, shown(output), cure)


def _last_output(result: Mapping[str, Any]) -> str:
    """Return the last line that a host printed instead of a result, or "".

    For example, this is an error message of sudo.
    """
    lines = [line.strip() for key in _OUTPUTS for line in str(result.get(key) or "")[:_MOST_OUTPUT].splitlines()]
    # Skip the line that OpenSSH prints after each command on a terminal.
    printed = [line for line in lines if line and not re.match(r"Shared connection to \S+ closed", line)]
    return printed[-1] if printed else ""


def _lines(value: Any) -> str:
    """Return the value as text with printable and shortened lines."""
    if not isinstance(value, str):
        return text(value)
    lines = value[: MOST_TEXT * _MOST_MESSAGE_LINES].split("\n")
    return "\n".join(text(line) for line in lines[:_MOST_MESSAGE_LINES])
