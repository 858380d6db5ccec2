# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare this machine's GPUs with NVIDIA's tools and the model files.

See docs/hardware.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIMULATOR = ROOT / "roles" / "gpu_simulator" / "files"
sys.path[:0] = [str(ROOT / "collections"), *(str(ROOT / "tools" / name) for name in ("gpu_load", "gpu_change"))]

from card_program import KINDS
from found import Record
from signals import Ended, as_exceptions

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.hardware.collect import TIMEOUT_SECONDS, collect
from ansible_collections.openfleet.gpu.plugins.module_utils.hardware.model_readings import Readings
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import DIRECTORY
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware import model_file, report, simulated
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.checks import judge
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.outcome import Check, not_run

DIFFERENT, UNREAD = 1, 3
#: Maximum number of printed lines. The report contains all lines.
_MOST_LINES = 20
#: Areas that the run checks again while a GPU has the instances that --change creates.
_WITH_INSTANCES = ("NVML", "NVML agrees", "nvidia-smi", "capabilities", "devices", "model file")


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.only_read:
            print(json.dumps(collect(seconds=options.timeout)))
            return 0
        reading = collect(_progress, options.timeout)
        files = model_file.model_files(options.models)
        more = _against_the_simulator(reading, files, options)
        measured = None
        if options.load:
            under_load, measured = _under_load(reading, options)
            more = [*more, *under_load]
        if options.change:
            more = [*more, *_changed(reading, files, options)]
        made = report.make(reading, files, identify=options.identify, more=more)
    except FleetError as error:
        print("check-gpu: %s" % error, file=sys.stderr)
        return UNREAD
    except Ended as ended:
        _tell("ended by %s, and wrote no report" % ended)
        return 128 + ended.number
    if measured is not None:
        made["measured"] = measured if options.identify else report.masked(measured, report.identities(reading))
    _tell_of_a_record(options)
    options.directory.mkdir(parents=True, exist_ok=True)
    _write(options.directory / "gpu-check.json", report.to_text(made))
    _write_page(options.directory / "gpu-check.html", made)
    lines = report.differences(made)
    for line in lines[:_MOST_LINES]:
        print(line)
    if len(lines) > _MOST_LINES:
        print("and %d more, in the report" % (len(lines) - _MOST_LINES))
    print(report.line(made))
    return DIFFERENT if lines else 0


def _against_the_simulator(reading: dict, files: list, options: argparse.Namespace) -> list:
    """Return the checks against simulated GPUs.

    Another process reads the simulated GPUs.
    """
    keys, reason = simulated.models_of(reading, files)
    if not reason and options.library == "none":
        reason = "--library none was given"
    if reason:
        return simulated.checks(reading, None, reason)
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as folder:
        try:
            other = _read_simulated(keys, reading, Path(folder), options)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or str(error)
            return simulated.checks(
                reading, None, "the simulated library cannot be read: %s" % " ".join(output.split())[-300:]
            )
    return simulated.checks(reading, other, "")


def _read_simulated(keys: list[str], reading: dict, folder: Path, options: argparse.Namespace) -> dict:
    """Return the readings of simulated GPUs.

    Raises OSError or SubprocessError if there is no compiler or a command fails.
    """
    library = Path(options.library or folder)
    run = {"check": True, "capture_output": True, "text": True, "timeout": options.timeout}
    if not options.library:
        _progress("the simulated library, which is built first")
        subprocess.run(["make", "-s", "-C", str(SIMULATOR / "src"), "BUILD=%s" % folder], **run)
    environment = dict(
        os.environ,
        GPUSIM_STATE=str(folder / "state"),
        GPUSIM_LIBRARY=str(library / "libnvidia-ml.so.1"),
        LD_LIBRARY_PATH=str(library),
    )
    gpus = [{"model": key} for key in keys]
    configuration = {"host": "check-gpu", "gpus": gpus, "driver_version": reading["nvml"]["facts"]["driver_version"]}
    command = [sys.executable, "-m", "gpusim", "init", "--config", "-", "--models", str(options.models)]
    places = dict(environment, PYTHONPATH=str(SIMULATOR))
    subprocess.run(command, env=places, input=json.dumps(configuration), **run)
    done = subprocess.run([sys.executable, str(Path(__file__).resolve()), "--only-read"], env=environment, **run)
    return json.loads(done.stdout)


def _under_load(reading: dict, options: argparse.Namespace) -> tuple[list, dict | None]:
    """Return the checks of one GPU under load, and the measured values."""
    import judge
    import measure

    simulated_nvml = reading["nvml"]["simulated"]
    index, reason = _free_gpu(reading, options.gpu)
    if index is None:
        return list(judge.none(options.gpu, reason)), None
    uuid = Readings(reading["nvml"]["gpus"][index]["calls"]).value("nvmlDeviceGetUUID")
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as folder:
        # CUDA does not know the UUIDs of GPUs in a simulated NVML.
        device = "#%d" % index if simulated_nvml else uuid
        card = measure.Card(index, device, Path(folder), options.timeout, _tell, options.image, tuple(options.without))
        measured = measure.measure(card)
        return list(judge.checks(index, measured, simulated_nvml, measure.KERNEL_SECONDS)), measured


def _changed(reading: dict, files: list, options: argparse.Namespace) -> list:
    """Change and restore one GPU, and return the checks."""
    import change

    calls = {gpu["index"]: gpu["calls"] for gpu in reading["nvml"]["gpus"]}
    request = change.Request(
        options.gpu, options.state_directory, calls, lambda index: _with_instances(index, files, options), _tell
    )
    with as_exceptions():
        return change.checks(request)


def _with_instances(index: int, files: list, options: argparse.Namespace) -> list:
    """Return the checks of a GPU with instances. Another process reads the GPU."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only-read", "--timeout", str(options.timeout)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = judge(json.loads(done.stdout), files)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        return [not_run("change: MIG", index, "reading it with instances", " ".join(output.split())[-300:])]
    return [_of_change(check) for check in found if check.gpu == index and check.area in _WITH_INSTANCES]


def _of_change(check: Check) -> Check:
    return dataclasses.replace(check, area="change: MIG, %s" % check.area)


def _free_gpu(reading: dict, wanted: int | None) -> tuple[int | None, str]:
    """Return the index of an unused GPU and "", or None and the reasons."""
    reasons = []
    for gpu in reading["nvml"]["gpus"]:
        index, calls = gpu["index"], Readings(gpu["calls"])
        if wanted not in (None, index):
            continue
        mode = calls.value("nvmlDeviceGetMigMode")
        if any(calls.value("nvmlDeviceGet%sRunningProcesses" % kind, "count") for kind in ("Compute", "Graphics")):
            reasons.append("GPU %d is in use" % index)
        elif mode and mode[0]:
            reasons.append("GPU %d is in MIG mode" % index)
        elif gpu["problem"]:
            reasons.append("GPU %d: %s" % (index, gpu["problem"]))
        else:
            return index, ""
    return None, "; ".join(reasons) or "the host has no GPU %s" % wanted


def _tell_of_a_record(options: argparse.Namespace) -> None:
    """Print a warning if an interrupted run with --change left a GPU changed."""
    record = Record(options.state_directory)
    if record.unfinished():
        _tell("a GPU was changed and is not restored (%s): run it with --change, as root" % record.path)


def _progress(text: str) -> None:
    _tell("reading %s" % text)


def _tell(text: str) -> None:
    print("check-gpu: %s" % text, file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print("check-gpu: wrote %s" % path, file=sys.stderr)


def _write_page(path: Path, made: dict) -> None:
    try:
        from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware import page
    except ImportError as error:
        print(
            "check-gpu: %s was not written: Python has no module %s (make check-gpu installs it)" % (path, error.name),
            file=sys.stderr,
        )
        return
    _write(path, page.to_text(made))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="check-gpu",
        description="Read this machine's GPUs through NVML, nvidia-smi and kernel files, and compare the readings with each "
        "other and with the collection's model files. Nothing is changed without --change. Run as root to read values that NVML "
        "hides from other users.",
        epilog="Writes gpu-check.json and gpu-check.html. Exit status: 0 no differences, 1 differences, 2 wrong usage, 3 the "
        "GPUs could not be read. Checks that could not run are listed as 'not run' with the reason. See docs/hardware.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(), metavar="DIR", help="folder of the report (default: the current one)"
    )
    parser.add_argument(
        "--identify",
        action="store_true",
        help="keep serial numbers and UUIDs in the report instead of replacing them",
    )
    parser.add_argument(
        "--models", type=Path, default=model_file.MODELS, metavar="DIR", help="folder of the model files"
    )
    parser.add_argument(
        "--library",
        metavar="DIR",
        help="folder of the simulated library, whose answers are compared with the driver's, or none to skip this (default: "
        "build it with cc and make)",
    )
    parser.add_argument(
        "--load",
        action="store_true",
        help="also run kernels for some minutes on one unused GPU: alone, as a tenant of the vGPU limiter, and with a private "
        "MPS daemon; the limiter needs cc and make",
    )
    parser.add_argument(
        "--image",
        metavar="NAME",
        help="with --load, also run a tenant in a container of this local podman or docker image, which needs python3",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=KINDS,
        metavar="KIND",
        help="a kind of memory that --load does not allocate, such as managed; can be repeated",
    )
    parser.add_argument(
        "--change",
        action="store_true",
        help="also change one unused GPU and restore it: MIG mode and instances, compute mode, time slice; needs root. After an "
        "interrupted run, it restores that GPU first",
    )
    parser.add_argument(
        "--state-directory",
        default=DIRECTORY,
        metavar="DIR",
        help="folder where --change locks the host and records the original state (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu", type=int, metavar="INDEX", help="the GPU for --load and --change (default: the first unused one)"
    )
    parser.add_argument("--only-read", action="store_true", help="print the readings as JSON, and write no report")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time limit for an unresponsive driver (default: %(default)g)",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
