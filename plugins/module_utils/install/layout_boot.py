# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install or remove the command gpu-layout, the host's layout, and their units.

The units apply the layout at boot and watch it. A layout on trial (module_utils/change/trial.py) is written but not
applied, and the previous layout is kept.
"""

from __future__ import annotations

import json
import pwd
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping

from ..durable import FORMER
from ..processes.command import run_to_end
from . import sources as on_demand
from .archive import archive
from .command_file import MODE, difference, origin, shebang
from .files import Installation, InstallError
from .sources import Sources

# Files of an installation, relative to the root.
COMMAND = "usr/local/bin/gpu-layout"
LAYOUT = "etc/openfleet-gpu/layout.json"
UNIT = "gpu-layout.service"
UNIT_FILE = "etc/systemd/system/" + UNIT
# Files that a layout on trial replaces.
KEPT = (LAYOUT, UNIT_FILE)

# This service writes metrics of the layout. The timer sets the interval.
METRICS, METRICS_TIMER = "gpu-layout-metrics.service", "gpu-layout-metrics.timer"
METRICS_FILES = tuple("etc/systemd/system/" + unit for unit in (METRICS, METRICS_TIMER))
# Record of the metrics file's directory, and of the directories that were created for it.
METRICS_RECORD = "etc/openfleet-gpu/metrics.json"
TEXTFILE = "openfleet_gpu_layout.prom"
# RuntimeDirectory of the metrics unit, with the state that it keeps between runs.
METRICS_RUNTIME = "run/openfleet-gpu-metrics"
METRICS_KEPT = ("lock", "mps-servers.json")
_NOT_RECORDED: Mapping[str, Any] = {"directory": "", "made": []}

# Service and socket with which owners exempt their idle workloads from reclaim, and the service's settings.
KEEP, KEEP_SOCKET = "gpu-layout-keep.service", "gpu-layout-keep.socket"
KEEP_FILES = tuple("etc/systemd/system/" + unit for unit in (KEEP, KEEP_SOCKET))
KEEP_SETTINGS = "etc/openfleet-gpu/keep.json"

# Service and socket that lease parts of GPUs, the slice of the leases, and the record of leases.
LEASE, LEASE_SOCKET = "gpu-layout-lease.service", "gpu-layout-lease.socket"
LEASE_FILES = tuple("etc/systemd/system/" + unit for unit in (LEASE, LEASE_SOCKET, "openfleet-gpu-leases.slice"))
LEASES = "leases.json"

# The agent that provides turnstiles to the layout's tenants.
AGENT = "openfleet-vgpu-agent.service"
AGENT_FILE = "etc/systemd/system/" + AGENT

# This file exists from the first change until the units are started.
UNFINISHED = "etc/openfleet-gpu/installing"

# Sudo rule for accounts that may list GPU holders. sudo ignores files with a dot in their name, such as unfinished
# files.
SUDOERS = "etc/sudoers.d/openfleet-gpu-holders"
READERS = "etc/openfleet-gpu/readers.json"
ASK = "/%s holders --json" % COMMAND
# Capital letters are refused, because sudoers aliases such as ALL have capital letters.
ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
RULE = """\
# Written by the role openfleet.gpu.gpu_layout. Set gpu_layout_readers: [] to remove it.
# Permits exactly this command and these arguments, as root, in an environment that the caller cannot change.
Cmnd_Alias OPENFLEET_GPU_HOLDERS = {ask}
Defaults!OPENFLEET_GPU_HOLDERS env_reset, !setenv, !env_keep, !env_check, !requiretty
Defaults!OPENFLEET_GPU_HOLDERS secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
{accounts} ALL = (root) NOPASSWD: NOSETENV: OPENFLEET_GPU_HOLDERS
"""
_NEEDS_COMMAND = "Set gpu_layout_restore_at_boot: true, or %s."


def argspec() -> dict[str, Any]:
    """Return the options of the module."""
    text = {"type": "str", "default": ""}
    return {
        "state": {"type": "str", "choices": ["present", "absent", "former"], "default": "present"},
        "layout": {"type": "list", "elements": "dict", "default": []},
        "unit": text,
        "on_trial": {"type": "bool", "default": False},
        "metrics": _part(directory=text, service=text, timer=text),
        "keep": _part(
            wanted={"type": "bool", "default": False},
            socket=text,
            service=text,
            settings={"type": "dict", "default": {}},
        ),
        "lease": _part(
            wanted={"type": "bool", "default": False},
            socket=text,
            service=text,
            slice=text,
            state_directory={"type": "path", "default": "/var/lib/openfleet-gpu"},
        ),
        "readers": _part(
            accounts={"type": "list", "elements": "str", "default": []},
            state_directory={"type": "path", "default": "/var/lib/openfleet-gpu"},
        ),
        "agent": text,
        "records": {"type": "path"},
        "installed_code": {"type": "bool", "default": True},
        **on_demand.argspec(),
    }


def _part(**options: Any) -> dict[str, Any]:
    return {"type": "dict", "default": {}, "apply_defaults": True, "options": options}


def bring_about(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    """Apply the requested state, and return the result of the module."""
    return on_demand.bring_about(params, check_mode, _body)


def _body(params: Mapping[str, Any], target: Installation, given: Sources) -> None:
    if params["state"] == "former":
        restore_former(target)
    elif params["state"] == "absent":
        uninstall(target, params)
    else:
        install(target, params, given)


def install(target: Installation, wanted: Mapping[str, Any], sources: Sources) -> None:
    """Apply the parameters of the module.

    Raises SourcesNeededError before any change.
    """
    metrics, keep, readers = wanted["metrics"], wanted["keep"], wanted["readers"]
    _refuse(target, metrics["directory"], keep, readers["accounts"])
    made_from = origin(sources.digest)
    command = target.path(COMMAND)
    reason = difference(command, made_from)
    content = b""
    if reason is not None and not target.check:
        content = archive(sources.texts(), made_from, shebang(sys.executable))
    if target.mark(UNFINISHED):
        target.done.append("start the units (an earlier run did not start them)")
    if reason is not None:
        target.replace(command, content, MODE, reason)
    for relative in KEPT:
        current = target.path(relative)
        if not wanted["on_trial"]:
            target.remove(relative + FORMER)
        elif not target.path(relative + FORMER).exists():
            target.write(relative + FORMER, current.read_bytes() if current.exists() else b"")
    target.write(LAYOUT, _json(wanted["layout"]))
    target.write(UNIT_FILE, wanted["unit"].encode())
    watched = _install_metrics(target, metrics)
    kept = _install_keep(target, keep)
    leased = _install_lease(target, wanted["lease"])
    served = _install_agent(target, wanted["agent"])
    if target.done:
        _start(target, not wanted["on_trial"], watched, kept)
        if leased:
            target.systemctl("enable", "--quiet", LEASE, LEASE_SOCKET)
            # Stop the service and socket at once, as for `keep`. Leases have their own units, which do not end with the
            # service.
            target.systemctl("stop", LEASE, LEASE_SOCKET, log_of=LEASE)
            target.systemctl("start", LEASE_SOCKET, LEASE, log_of=LEASE)
        if served:
            target.systemctl("enable", "--quiet", AGENT)
            # systemd preserves the turnstiles' memory during a restart, because running tenants have it mapped.
            target.systemctl("restart", AGENT, log_of=AGENT)
    # Install the following parts last, because no unit uses them.
    _install_readers(target, readers)
    target.finish()


def _start(target: Installation, tried: bool, watched: bool, kept: bool) -> None:
    target.reload(target.is_host)
    target.systemctl("enable", "--quiet", UNIT)
    if tried:
        # The layout is already applied, so this restart changes no GPU. It proves that the next boot can apply the
        # layout.
        target.systemctl("restart", UNIT, log_of=UNIT)
    if watched:
        target.systemctl("enable", "--quiet", METRICS_TIMER)
        target.systemctl("restart", METRICS_TIMER, log_of=METRICS)
        if tried:
            # Replace the previous layout's metrics in the file.
            target.systemctl("start", METRICS, log_of=METRICS)
    if kept:
        target.systemctl("enable", "--quiet", KEEP_SOCKET)
        # Stop the service and the socket at once. Otherwise, a user who connects in between would restart the service.
        # A socket also cannot start while its service runs.
        target.systemctl("stop", KEEP, KEEP_SOCKET, log_of=KEEP)
        target.systemctl("start", KEEP_SOCKET, log_of=KEEP)


def restore_former(target: Installation) -> None:
    """Restore the previous layout and unit after a trial."""
    for relative in KEPT:
        former = target.path(relative + FORMER)
        if not former.exists():
            continue
        if former.stat().st_size:
            target.write(relative, former.read_bytes())
        else:
            target.remove(relative)
        target.remove(relative + FORMER)
    if target.done:
        target.reload(target.is_host)


def uninstall(target: Installation, wanted: Mapping[str, Any]) -> None:
    """Remove everything, including the directory of records if the parameters name it."""
    for where, requested, disable in (
        ("gpu_layout_readers", wanted["readers"]["accounts"], "gpu_layout_readers: []"),
        ("gpu_layout_metrics_dir", wanted["metrics"]["directory"], 'gpu_layout_metrics_dir: ""'),
        ("gpu_layout_keep", wanted["keep"]["wanted"], "gpu_layout_keep: false"),
        ("gpu_layout", wanted["lease"]["wanted"], "remove `leases` from gpu_layout"),
    ):
        if requested:
            raise InstallError(where, "it needs the command and the layout on the host", _NEEDS_COMMAND % disable)
    _uninstall_readers(target)
    _uninstall_agent(target)
    _uninstall_keep(target)
    _uninstall_lease(target)
    _uninstall_metrics(target, _recorded(target))
    if target.path(UNIT_FILE).exists():
        target.systemctl("disable", "--quiet", "--now", UNIT, log_of=UNIT)
    for relative in (UNIT_FILE, LAYOUT, UNIT_FILE + FORMER, LAYOUT + FORMER, COMMAND, UNFINISHED):
        target.remove(relative)
    if not target.check:
        target.prune(target.path(LAYOUT).parent, report=False)
    if target.done:
        target.reload(target.is_host)
    if wanted["records"]:
        _remove_records(target, Path(wanted["records"]))


def _refuse(target: Installation, directory: str, keep: Mapping[str, Any], accounts: list[str]) -> None:
    """Raise InstallError for invalid settings, before any change."""
    wrong = [name for name in accounts if not ACCOUNT.fullmatch(name)]
    if wrong:
        raise InstallError(
            "gpu_layout_readers", "%s is not a valid account name (%s)" % (", ".join(map(repr, wrong)), ACCOUNT.pattern)
        )
    # In check mode, an earlier task may have only predicted the creation of sudo or the account.
    if accounts and not target.check:
        _refuse_readers(target, accounts)
    longest = str(keep["settings"].get("max"))
    if keep["wanted"] and not re.fullmatch(r"[1-9]\d{0,5}[mhdw]", longest):
        raise InstallError("gpu_layout_keep_max", "%r is not a length of time" % longest, "Write 7d or 12h.")
    if directory and not re.fullmatch(r"/[^\s%\"'\\]+", directory):
        raise InstallError(
            "gpu_layout_metrics_dir", "%r is not an absolute path without spaces, quotes and %%" % directory
        )


def _refuse_readers(target: Installation, accounts: list[str]) -> None:
    if not _visudo():
        raise InstallError(
            "gpu_layout_readers", "sudo is not installed on this host", "Install it, or set gpu_layout_readers: []."
        )
    # A root that is not the host's own has different accounts.
    missing = [name for name in accounts if not _exists(name)] if target.is_host else []
    if missing:
        raise InstallError(
            "gpu_layout_readers",
            "this host has no account %s" % ", ".join(missing),
            "Create it first or correct the name. An account created later with that name would get the rule.",
        )


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


def _visudo() -> str | None:
    return shutil.which("visudo", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")


def _install_readers(target: Installation, readers: Mapping[str, Any]) -> None:
    """Install or remove the sudo rule and the command's settings for this rule."""
    if not readers["accounts"]:
        _uninstall_readers(target)
        return
    target.write(READERS, _json(readers), 0o600)
    # Write the settings first, because they limit how many of these commands may run at once.
    rule = RULE.format(ask=ASK, accounts=", ".join(sorted(set(readers["accounts"]))))
    target.write(SUDOERS, rule.encode(), 0o440, _accept)


def _accept(new: Path) -> None:
    """Check a new sudoers file with visudo.

    An invalid file would disable sudo for all users.
    """
    done = run_to_end([_visudo() or "visudo", "-cf", str(new)])
    if done.returncode:
        raise InstallError("gpu_layout_readers", "visudo refuses the rule:\n%s" % (done.stdout + done.stderr).rstrip())


def _uninstall_readers(target: Installation) -> None:
    target.remove(SUDOERS)
    target.remove(READERS)


def _install_metrics(target: Installation, metrics: Mapping[str, Any]) -> bool:
    """Install or remove the metrics unit and its timer.

    Returns whether they are installed.
    """
    directory, before = metrics["directory"], _recorded(target)
    if before["directory"] != directory:
        _uninstall_metrics(target, before)
        before = _NOT_RECORDED
    if not directory:
        return False
    created = target.make(target.path(directory.lstrip("/")))
    target.write(
        METRICS_RECORD, _json({"directory": directory, "made": list(dict.fromkeys([*before["made"], *created]))})
    )
    for relative, text in zip(METRICS_FILES, (metrics["service"], metrics["timer"])):
        target.write(relative, text.encode())
    return True


def _recorded(target: Installation) -> Mapping[str, Any]:
    try:
        return json.loads(target.path(METRICS_RECORD).read_text())
    except FileNotFoundError:
        return _NOT_RECORDED


def _uninstall_metrics(target: Installation, record: Mapping[str, Any]) -> None:
    """Remove the metrics units and the metrics file.

    Otherwise, Prometheus would keep reading the old file.
    """
    if target.path(METRICS_FILES[1]).exists():
        target.systemctl("disable", "--quiet", "--now", METRICS_TIMER, log_of=METRICS)
        target.systemctl("stop", METRICS, log_of=METRICS)
    for relative in METRICS_FILES:
        target.remove(relative)
    if record["directory"]:
        target.remove(str(Path(record["directory"].lstrip("/"), TEXTFILE)))
    for name in METRICS_KEPT:
        target.remove("%s/%s" % (METRICS_RUNTIME, name))
    target.prune(target.path(METRICS_RUNTIME))
    for folder in reversed(record["made"]):
        target.prune(Path(folder))
    target.remove(METRICS_RECORD)


def _install_keep(target: Installation, keep: Mapping[str, Any]) -> bool:
    """Install or remove the socket and the service of `gpu-layout keep`.

    Returns whether they are installed.
    """
    if not keep["wanted"]:
        _uninstall_keep(target)
        return False
    target.write(KEEP_SETTINGS, _json(keep["settings"]))
    for relative, text in zip(KEEP_FILES, (keep["service"], keep["socket"])):
        target.write(relative, text.encode())
    return True


def _uninstall_keep(target: Installation) -> None:
    """Remove the keep units. Recorded keeps stay valid until they expire."""
    if target.path(KEEP_FILES[1]).exists():
        target.systemctl("disable", "--quiet", "--now", KEEP_SOCKET, log_of=KEEP)
        target.systemctl("stop", KEEP, log_of=KEEP)
    for relative in (*KEEP_FILES, KEEP_SETTINGS):
        target.remove(relative)


def _install_lease(target: Installation, lease: Mapping[str, Any]) -> bool:
    """Install or remove the units that lease parts of GPUs.

    The units are not removed before the last lease has ended. Returns whether the units were requested.
    """
    if lease["wanted"]:
        for relative, text in zip(LEASE_FILES, (lease["service"], lease["socket"], lease["slice"])):
            target.write(relative, text.encode())
    elif not _has_leases(target.path(lease["state_directory"].lstrip("/"))):
        _uninstall_lease(target)
    return bool(lease["wanted"])


def _has_leases(state_directory: Path) -> bool:
    try:
        return bool(json.loads((state_directory / LEASES).read_text())["bookings"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _uninstall_lease(target: Installation) -> None:
    """Remove the units that lease parts of GPUs. Programs with leases are not ended."""
    if target.path(LEASE_FILES[1]).exists():
        target.systemctl("disable", "--quiet", "--now", LEASE_SOCKET, LEASE, log_of=LEASE)
    for relative in LEASE_FILES:
        target.remove(relative)


def _install_agent(target: Installation, unit: str) -> bool:
    """Install the agent for tenants, or remove it if the text is empty.

    Returns whether the agent is installed.
    """
    if not unit:
        _uninstall_agent(target)
        return False
    target.write(AGENT_FILE, unit.encode())
    return True


def _uninstall_agent(target: Installation) -> None:
    """Remove the agent. Running programs keep the memory that they have mapped."""
    if target.path(AGENT_FILE).exists():
        target.systemctl("disable", "--quiet", "--now", AGENT, log_of=AGENT)
    target.remove(AGENT_FILE)


def _remove_records(target: Installation, folder: Path) -> None:
    """Remove the host's records.

    Ignores the lock that this run holds.
    """
    if not folder.is_dir():
        return
    if any(path.name != "lock" for path in folder.iterdir()):
        target.done.append("remove %s" % folder)
    if not target.check:
        shutil.rmtree(str(folder.resolve()))


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
