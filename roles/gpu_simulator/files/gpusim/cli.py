# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and run gpusim's command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

from . import configuration, kernel_mounts, load, record, show, target
from .catalogue import load_models
from .control import DRIVER_NOT_LOADED, IN_USE, WHOLE, Control, ControlError
from .errors import FleetError

MODELS_DIRECTORY = "/usr/local/share/gpusim/models"

# Faults other than return codes. gpusim.h describes them.
SIGNALS = ("kill", "kill-inside", "kill-after", "stop")

SWITCHES = {"on": "1", "off": "0"}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except FleetError as error:
        print(f"gpusim: {error}", file=sys.stderr)
        return 1


def _init(options: argparse.Namespace) -> None:
    desired = configuration.read(options.config)
    text = configuration.to_text(desired, load_models(options.models))
    control = Control()
    current_digest = None
    try:
        current_digest = control.dump()["host"].get("digest")
    except ControlError as error:
        if error.code != DRIVER_NOT_LOADED:
            raise
    gpus = f"{sum(entry.get('count', 1) for entry in desired['gpus'])} simulated GPUs of {desired['host']}"
    if current_digest == configuration.digest_of(text):
        print(f"unchanged: {gpus} as configured")
    elif options.check:
        print(f"changed: would lay out {gpus}")
    else:
        try:
            control.create(text)
        except ControlError as error:
            if error.code != IN_USE:
                raise
            cure = "Stop the processes that gpusim show lists, and run again"
            raise ControlError("", "GPUs are in use and cannot be changed", cure, IN_USE) from error
        print(f"changed: laid out {gpus}")


def _show(options: argparse.Namespace) -> None:
    state = Control().dump()
    print(json.dumps(state, indent=2) if options.json else show.to_text(state))


def _load(options: argparse.Namespace) -> None:
    control = Control()
    place = target.find(control.dump(), options.target)
    values = (options.utilization, options.memory, options.power)
    if options.clear:
        text = None
    elif options.pattern in load.PATTERNS:
        text = load.pattern_text(options.pattern, *values, options.period)
    elif any(value is not None for value in (*values, options.period)):
        cure = "Remove --utilization, --memory, --power and --period"
        raise FleetError(f"--pattern {options.pattern}", "a recorded load has its own values", cure)
    else:
        text = load.samples_text(options.pattern, options.interval)
    if text is not None:
        text += load.shares_text(options.sm, options.occupancy, options.tensor, options.bandwidth)
    control.load(place.gpu, place.gpu_instance, text)


def _run(options: argparse.Namespace) -> None:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise FleetError("run", "no command was given", "Write gpusim run --gpu 0 --memory 4GiB -- COMMAND")
    control = Control()
    place = target.find(control.dump(), options.gpu)
    gpu_instance = place.gpu_instance if options.gi is None else options.gi
    compute_instance = place.compute_instance if options.ci is None else options.ci
    if gpu_instance != WHOLE and compute_instance == WHOLE:
        compute_instance = 0
    # The process entry belongs to this process. exec keeps the PID and the start time, so the entry lasts as long as
    # the command.
    pid = os.getpid()
    control.attach(pid, place.gpu, gpu_instance, compute_instance, options.type, load.memory_bytes(options.memory))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        control.detach(pid)
        raise FleetError(command[0], f"cannot be run: {error.strerror}", "Name a program") from error


def _xid(options: argparse.Namespace) -> None:
    control = Control()
    place = target.find(control.dump(), options.target)
    control.xid(place.gpu, place.gpu_instance, place.compute_instance, options.number)


def _lose(options: argparse.Namespace) -> None:
    control = Control()
    state = control.dump()
    for place in [target.find_gpu(state, text) for text in options.gpus]:
        control.lose(place)


def _restore(options: argparse.Namespace) -> None:
    control = Control()
    state = control.dump()
    for place in [target.find_gpu(state, text) for text in options.gpus]:
        control.restore(place)


def _reset(options: argparse.Namespace) -> None:
    control = Control()
    state = control.dump()
    for place in [target.find_gpu(state, text) for text in options.gpus]:
        control.reset(place)
        print(f"GPU {place} was reset")


def _reboot(options: argparse.Namespace) -> None:
    Control().reboot()


def _fail(options: argparse.Namespace) -> None:
    control = Control()
    if options.clear:
        control.clear_failures()
    elif options.call is None or options.code is None:
        raise FleetError("fail", "CALL or --code is missing", "Write gpusim fail nvmlDeviceSetMigMode --code IN_USE")
    else:
        function = options.call if options.call == "any" or options.call.startswith("nvml") else f"nvml{options.call}"
        gpu = WHOLE if options.gpu is None else target.find_gpu(control.dump(), options.gpu)
        action = options.code if options.code in SIGNALS else options.code.upper()
        control.fail_on(function, gpu, options.nth, options.lasting, action)


def _set(options: argparse.Namespace) -> None:
    control = Control()
    if len(options.words) not in (2, 3):
        raise FleetError("set", "takes a GPU, or none, a key and a value", "Write gpusim set 0 passthrough on")
    *gpu, key, value = options.words
    index = target.find_gpu(control.dump(), gpu[0]) if gpu else WHOLE
    if key == "cuda_version":
        value = str(configuration.cuda_number(value))
    control.set(index, key, SWITCHES.get(value, value))


def _models(options: argparse.Namespace) -> None:
    for key, model in load_models(options.models).items():
        profiles = " ".join(profile.name for profile in model.profiles) or "no MIG"
        print(f"{key:16} {model.name}\n{'':16} {profiles}")


def _record(options: argparse.Namespace) -> None:
    readings, source = record.read_report(options.report, options.gpu)
    print(record.model_text(options.key, readings, source, load_models(options.models)), end="")


def _kernel_files(options: argparse.Namespace) -> None:
    if options.remove:
        kernel_mounts.remove(options.root)
    elif options.follow:
        kernel_mounts.follow(Control(), options.root)
    else:
        for left_out in kernel_mounts.write(Control().dump(), options.root):
            print(f"gpusim: left out: {left_out}", file=sys.stderr)


def _calls(options: argparse.Namespace) -> None:
    control = Control()
    if options.clear:
        control.clear_calls()
        return
    for function, count in sorted(control.dump()["calls"].items()):
        print(f"{count:9} {function}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpusim",
        description="Create, load, break and show the simulated GPUs of this host.",
        epilog="Name a GPU by index, UUID or PCI address. GPUSIM_STATE sets another state file, "
        "GPUSIM_LIBRARY another library, GPUSIM_MODELS another directory of models.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run, text: str, **more) -> argparse.ArgumentParser:
        child = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **more)
        child.set_defaults(run=run)
        return child

    models = {"metavar": "DIR", "default": os.environ.get("GPUSIM_MODELS") or MODELS_DIRECTORY}

    child = command("init", _init, "create the GPUs of a configuration file, unless they exist")
    form = 'JSON, or - for standard input: {"gpus": [{"model": …, "count": …}]}'
    child.add_argument("--config", required=True, metavar="FILE", help=form)
    child.add_argument("--models", help=f"model files, {MODELS_DIRECTORY} by default", **models)
    child.add_argument("--check", action="store_true", help="only report whether something would change")

    child = command("show", _show, "print GPUs, MIG modes, instances, processes, loads and pending faults")
    child.add_argument("--json", action="store_true", help="print the whole state as JSON")

    child = command("load", _load, "simulate load on a GPU or a GPU instance")
    child.add_argument(
        "target", metavar="GPU[/GI]", help="index of a GPU, also with the ID of a GPU instance, or UUID of a MIG device"
    )
    kind = child.add_mutually_exclusive_group(required=True)
    kind.add_argument("--pattern", metavar="constant|square|sine|FILE.csv", help="shape or recording")
    kind.add_argument("--clear", action="store_true", help="remove the load")
    child.add_argument("--utilization", metavar="PERCENT", help="for example 80, or a range 10..80")
    child.add_argument("--memory", metavar="SIZE", help="for example 4GiB, or a range 1GiB..4GiB")
    child.add_argument(
        "--power", metavar="WATTS", help="for example 300, or a range 100..300; default: follows utilization"
    )
    child.add_argument("--period", metavar="SECONDS", type=_seconds, help="period of square and sine, 60 by default")
    child.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=1.0, help="time between recorded samples"
    )

    for option, subject, default in (
        ("--sm", "busy SMs", 100),
        ("--occupancy", "active warps", 50),
        ("--tensor", "tensor cores", 50),
        ("--bandwidth", "DRAM bandwidth", 50),
    ):
        child.add_argument(
            option,
            metavar="PERCENT",
            type=_percent,
            help=f"{subject} as reported by GPM, in percent of the utilization, {default} by default",
        )

    child = command("run", _run, "run a command as a process on a GPU")
    child.add_argument("--gpu", required=True, help="the GPU, GPU/GI, or a MIG device's UUID")
    child.add_argument("--gi", type=int, help="GPU instance id, in MIG mode")
    child.add_argument("--ci", type=int, help="compute instance id, 0 by default")
    child.add_argument("--memory", default="0", metavar="SIZE", help="GPU memory in use, for example 4GiB")
    child.add_argument("--type", choices=("compute", "graphics", "mps"), default="compute")
    child.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND …")

    child = command("xid", _xid, "raise an Xid error for all registered clients")
    child.add_argument("target", metavar="GPU[/GI]", help="a GPU, a GPU instance or a MIG device's UUID")
    child.add_argument("number", type=_xid_number, metavar="NUMBER", help="number in NVIDIA's table: 48, 79, 94 …")

    child = command("lose", _lose, "drop GPUs off the bus with Xid error 79, so that all calls on them fail")
    child.add_argument("gpus", nargs="+", metavar="GPU")

    child = command("restore", _restore, "restore lost GPUs with their state")
    child.add_argument("gpus", nargs="+", metavar="GPU")

    child = command("reset", _reset, "reset GPUs: apply a pending MIG mode, remove instances")
    child.add_argument("gpus", nargs="+", metavar="GPU")

    command("reboot", _reboot, "apply the effects of a host restart")

    child = command(
        "fail", _fail, "make calls of an NVML function fail once or until cleared, or kill or stop the caller"
    )
    child.add_argument(
        "call", nargs="?", metavar="CALL", help="nvmlDeviceCreateGpuInstance, with or without nvml; any, with --gpu"
    )
    child.add_argument(
        "--nth", type=int, default=1, metavar="N", help="number of the call from now, the next by default"
    )
    child.add_argument(
        "--gpu",
        metavar="GPU",
        help="only calls on this GPU, its instances and MIG devices; default: all calls",
    )
    child.add_argument(
        "--lasting",
        action="store_true",
        help="fail that call and all later ones, in all versions of the function, until --clear",
    )
    codes = f"IN_USE or another NVML error, or one of {', '.join(SIGNALS)}"
    child.add_argument("--code", metavar="CODE", help=codes)
    child.add_argument("--clear", action="store_true", help="remove all faults, also lasting ones")

    child = command("set", _set, "set a switch or a fault of a GPU, or a switch of the host")
    words = (
        "GPU KEY VALUE, for example 0 passthrough on, 0 reset_refused on, 0 held_by_kernel on, 0 memory_info off, "
        "0 compute_mode_fixed on or 0 throttle thermal; "
        "for the host KEY VALUE, for example driver_version 570.148.08"
    )
    child.add_argument("words", nargs="+", metavar="WORD", help=words)

    child = command("models", _models, "list the available models")
    child.add_argument("--models", help=f"model files, {MODELS_DIRECTORY} by default", **models)

    child = command("record", _record, "print the model file of a card from a make check-gpu report")
    child.add_argument("report", metavar="FILE", help="gpu-check.json")
    child.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="GPU of the report, 0 by default")
    child.add_argument("--key", required=True, help="the model's name in inventories, for example H100-80GB")
    child.add_argument("--models", help=f"model files, {MODELS_DIRECTORY} by default", **models)

    child = command(
        "kernel-files",
        _kernel_files,
        "write the files of the kernel and its driver in /proc, /sys and /dev/nvidia-caps",
    )
    child.add_argument("--root", metavar="DIR", type=Path, default=Path("/"), help="write below this directory")
    kind = child.add_mutually_exclusive_group()
    kind.add_argument("--follow", action="store_true", help="write again at each instance change, until killed")
    kind.add_argument("--remove", action="store_true", help="remove the files")

    child = command("calls", _calls, "print the number of calls of each NVML function on this host")
    child.add_argument("--clear", action="store_true", help="reset the counts")
    return parser


def _xid_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an Xid number, 1 to 65535")
    return int(text)


def _percent(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage, 0 to 100")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return float(text)
