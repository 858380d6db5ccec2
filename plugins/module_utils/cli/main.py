# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the arguments, errors and exit status of gpu-layout.

Each subcommand is in its own module, which is imported only when it runs.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import argparse
import functools
import importlib
import json
import signal
import sys
from typing import Any, Sequence

from ..errors import FleetError
from ..runner import outline
from ..techniques.commands import COMMANDS
from ..vendors.nvidia.nvml.bounded_session import start_ahead

LAYOUT = "/etc/openfleet-gpu/layout.json"
STATE_DIRECTORY = "/var/lib/openfleet-gpu"
LEASE_SOCKET = "/run/openfleet-gpu-lease.sock"
KEEP_SOCKET, KEEP_SETTINGS = "/run/openfleet-gpu-keep.sock", "/etc/openfleet-gpu/keep.json"
EXIT_ERROR, EXIT_CHANGES = 1, 2
# With a fixed width, argparse does not import shutil to find the terminal's width for each argument.
_FIXED_WIDTH = functools.partial(argparse.HelpFormatter, width=80)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    The status is 0 for success, 1 for an error and 2 for wrong usage. For `plan --exit-code`, 2 means that the plan has
    changes.
    """
    arguments, program = _split(sys.argv[1:] if arguments is None else arguments)
    options = _parser(arguments).parse_args(arguments)
    options.program = program
    # systemd sends SIGTERM if a boot takes too long. An exception lets the code restore the old layout first.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    module, function = options.run
    if options.command in _DRIVER_COMMANDS:
        # The child loads pynvml while this process loads the code of the subcommand.
        start_ahead()
    try:
        status: int = getattr(importlib.import_module(module, __package__), function)(options)
        if sys.stdout is not None:
            # Flush now, to notice a closed pipe.
            sys.stdout.flush()
        return status
    except FleetError as error:
        return _failed(options, error, outline(error))
    except BrokenPipeError:
        # The reader closed the pipe. Do not write buffered text at exit.
        sys.stdout = None  # type: ignore[assignment]
        return EXIT_ERROR
    except OSError as error:
        return _failed(options, error, {"where": error.filename, "problem": error.strerror, "cure": ""})
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Split the arguments at `--`, which is followed by the program of `lease`."""
    if arguments[:1] != ["lease"] or "--" not in arguments:
        return arguments, None
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def _failed(options: argparse.Namespace, error: Exception, details: dict[str, Any]) -> int:
    if options.json:
        print(json.dumps({"error": details}, indent=2))
    print("gpu-layout: %s" % error, file=sys.stderr)
    return getattr(options, "exit_error", EXIT_ERROR)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these arguments.

    Adding a subcommand takes time, so only the requested subcommand is added if possible.
    """
    parser = argparse.ArgumentParser(
        prog="gpu-layout",
        description="Show, plan, apply and export how the NVIDIA GPUs of this host are shared.",
        epilog="Exit status: 0 done, 1 error, 2 wrong usage. See docs/gpu-layout-command.md.",
        allow_abbrev=False,
        formatter_class=_FIXED_WIDTH,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    named = [name for name in arguments[:1] if name in _COMMANDS]
    for name in named or _COMMANDS:
        run, text, add = _COMMANDS[name]
        command = _command(commands, name, run, text)
        add(command)
        command.formatter_class = argparse.HelpFormatter
    parser.formatter_class = argparse.HelpFormatter
    return parser


def _show(show: argparse.ArgumentParser) -> None:
    show.add_argument(
        "--telemetry", action="store_true", help="add current memory, power, temperature and utilization (JSON)"
    )
    _saved_layout(show)
    _state_directory(show)


def _plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--exit-code", action="store_true", help="exit with 2 if something would change")
    _layout(plan)


def _apply(apply: argparse.ArgumentParser) -> None:
    _layout(apply)
    apply.add_argument(
        "--busy-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="time limit of --on-busy wait (default: 600)",
    )
    apply.add_argument(
        "--grace-period",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL of --on-busy force (default: 30)",
    )
    apply.add_argument(
        "--restart-services",
        type=lambda text: [name for name in text.split(",") if name],
        default="nvidia-dcgm.service,dcgm-exporter.service,nvidia-dcgm-exporter.service",
        metavar="UNIT,UNIT",
        help="services that read MIG devices at their start, restarted if they run and devices change (default: %(default)s)",
    )
    apply.add_argument(
        "--lock-timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for another run that is changing this host (default: 60)",
    )
    apply.add_argument(
        "--driver-timeout",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait for the driver to answer, as at boot (default: 0)",
    )


def _keep(keep: argparse.ArgumentParser) -> None:
    keep.add_argument(
        "name", metavar="NAME", nargs="?", help="a service, a container, or the pid of a process on a GPU"
    )
    keep.add_argument("duration", metavar="DURATION", nargs="?", help="30m, 12h, 3d or 1w, up to the limit of the host")
    keep.add_argument("--list", action="store_true", help="list the keeps")
    keep.add_argument("--end", metavar="NAME", help="end a keep")
    keep.add_argument(
        "--socket", default=KEEP_SOCKET, metavar="FILE", help="the service's socket (default: %(default)s)"
    )


def _keep_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--settings", default=KEEP_SETTINGS, metavar="FILE", help="settings from the role (default: %(default)s)"
    )


def _lease(lease: argparse.ArgumentParser) -> None:
    lease.usage = (
        "gpu-layout lease (--memory SIZE --sm PERCENT | --profile PROFILE) [--gpus N] [--for DURATION] [--wait] -- PROGRAM\n"
        "       gpu-layout lease list | end NUMBER | extend NUMBER DURATION | resize NUMBER --memory SIZE --sm PERCENT"
    )
    lease.add_argument("words", nargs="*", metavar="WORD", help="list, end, extend or resize")
    lease.add_argument("--memory", metavar="SIZE", help="memory on each GPU, for example 18GiB")
    lease.add_argument("--sm", type=int, metavar="PERCENT", help="SM share on each GPU in percent")
    lease.add_argument("--profile", metavar="PROFILE", help="a MIG instance on each GPU, for example 1g.10gb")
    lease.add_argument("--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: 1)")
    lease.add_argument(
        "--for", dest="duration", metavar="DURATION", help="30m, 4h or 2d (default: the limit of the entry)"
    )
    lease.add_argument("--wait", action="store_true", help="wait in the queue until the lease is possible")
    lease.add_argument(
        "--socket", default=LEASE_SOCKET, metavar="FILE", help="the service's socket (default: %(default)s)"
    )


def _lease_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--layout", default=LAYOUT, metavar="FILE", help="the host's layout (default: %(default)s)")
    _state_directory(serve)


def _metrics(metrics: argparse.ArgumentParser) -> None:
    metrics.add_argument(
        "--textfile",
        metavar="DIRECTORY",
        help="write openfleet_gpu_layout.prom for node_exporter to this directory",
    )
    _saved_layout(metrics)
    metrics.add_argument(
        "--unlisted",
        choices=["fail", "remove", "keep"],
        default="fail",
        help="keep: do not count foreign instances without a layout entry as differences (default: fail)",
    )
    _state_directory(metrics)


def _export(export: argparse.ArgumentParser) -> None:
    _state_directory(export)
    export.add_argument("--pin-placements", action="store_true", help="include the placement of every instance")
    export.add_argument(
        "--select-by",
        choices=["index", "uuid", "pci"],
        default="index",
        help="selectors for GPUs (default: index, which fits equal hosts; the others fit only this host)",
    )


def _fits(fits: argparse.ArgumentParser) -> None:
    fits.add_argument(
        "model", metavar="MODEL", help="key of the catalogue or name of the GPU: H100-80GB, 'NVIDIA H200'"
    )
    fits.add_argument(
        "profiles",
        metavar="PROFILE",
        nargs="+",
        help="3g.40gb, 2x1g.10gb for two, or 3g.40gb@4 for placement 4",
    )


def _import(parted: argparse.ArgumentParser) -> None:
    parted.add_argument("file", metavar="FILE", help="the configuration (YAML or JSON; - reads standard input)")
    parted.add_argument("--label", metavar="NAME", help="only the configuration of this name")


def _slurm_devices(devices: argparse.ArgumentParser) -> None:
    devices.add_argument(
        "--common", action="store_true", help="only devices that keep their number, while slurmd uses an old gres.conf"
    )


def _slurm_job(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "--socket", default=LEASE_SOCKET, metavar="FILE", help="the service's socket (default: %(default)s)"
    )


def _nothing(_command: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def _command(commands: Any, name: str, run: str, text: str) -> argparse.ArgumentParser:
    # Abbreviations are not accepted, because a sudo rule permits exact words only.
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        allow_abbrev=False,
        formatter_class=_FIXED_WIDTH,
    )
    command.add_argument("--json", action="store_true", help="print JSON, also for errors")
    command.set_defaults(run=run.split(":"))
    return command


def _saved_layout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--layout",
        default=LAYOUT,
        metavar="FILE",
        help="gpu_layout as JSON, or as YAML with PyYAML; - reads standard input (default: %(default)s)",
    )


def _layout(command: argparse.ArgumentParser) -> None:
    _saved_layout(command)
    command.add_argument(
        "--unlisted",
        choices=["fail", "remove", "keep"],
        default="fail",
        help="what to do with foreign MIG instances without a layout entry (default: fail)",
    )
    command.add_argument(
        "--lost",
        choices=["fail", "skip"],
        default="fail",
        help="if a GPU of the layout fell off the bus: stop, or change the other GPUs (default: fail)",
    )
    command.add_argument(
        "--unnamed",
        choices=["keep", "release"],
        default="keep",
        help="GPUs that lost their entry: restore their last state, or release them (default: keep)",
    )
    command.add_argument(
        "--on-busy",
        choices=["fail", "wait", "force"],
        default="fail",
        help="if workloads block the change: stop, wait for them, or end them (default: fail)",
    )
    _state_directory(command)


def _state_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state-directory",
        default=STATE_DIRECTORY,
        metavar="DIRECTORY",
        help="folder of the host's lock, journal and records (default: %(default)s)",
    )


def seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


#: Subcommands that always need the driver, and whose code takes time to load.
_DRIVER_COMMANDS = ("plan", "apply", "export")

#: Subcommands in the order of the help text: function, description, and the function that adds the arguments.
_COMMANDS = {
    "show": (".show:show", "show the GPUs and their processes", _show),
    "plan": (".change:plan", "show the changes of apply, and change nothing", _plan),
    "apply": (".change:apply", "apply the layout to the GPUs", _apply),
    "holders": (
        ".holders:holders",
        "list the holders of each GPU (for accounts without other rights)",
        _nothing,
    ),
    "keep": (
        ".keep:keep",
        "exempt your idle service, container or process from being stopped (without root)",
        _keep,
    ),
    "lease": (".lease:lease", "run a program with a leased part of a GPU, or manage leases (without root)", _lease),
    "lease-serve": (".lease_serve:serve", "the service of lease (started by systemd)", _lease_serve),
    "keep-serve": (".keep_serve:serve", "the service of keep (started by systemd)", _keep_serve),
    **{name: (run, text, _state_directory) for name, run, text in COMMANDS},
    "slurm-devices": (
        "..slurm.task_devices:refresh",
        "list GPUs and MIG devices for Slurm jobs (run by systemd)",
        _slurm_devices,
    ),
    "slurm-job": (
        ".slurm_job:slurm_job",
        "start and end the lease of a job (run by Slurm as Prolog and Epilog)",
        _slurm_job,
    ),
    "metrics": (
        ".metrics:metrics",
        "print the host's drift from its layout and its GPU holders for Prometheus",
        _metrics,
    ),
    "export": (".export:export", "print the state of the GPUs as gpu_layout, in YAML", _export),
    "fits": (".without_gpus:fits", "check whether MIG profiles fit on a GPU model (without a GPU)", _fits),
    "import": (".without_gpus:import_", "convert a configuration of nvidia-mig-parted to gpu_layout", _import),
}
