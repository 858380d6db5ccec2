# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a summary of the fleet's changes at the end of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_summary
type: aggregate
short_description: Print what a run planned or applied on the whole fleet
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - >-
    At the end of a run that used the module M(openfleet.gpu.layout), prints the number of MIG instances that were created,
    destroyed and kept, and the number of changed GPUs and hosts. In check mode, these are the planned numbers.
  - A host counts once, even if several plays planned it.
  - After that, it prints the hosts that failed or were unreachable, with the first line of the reason. Hosts with the same
    reason share a line.
  - While a host waits for holders of GPUs (C(gpu_layout_on_busy=wait)), it prints the holders at each retry.
requirements:
  - >-
    The collection's playbooks enable this callback themselves. For other playbooks, set C(callbacks_enabled =
    openfleet.gpu.fleet_summary) in C([defaults]) of C(ansible.cfg), or the environment variable E(ANSIBLE_CALLBACKS_ENABLED).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible import constants as C
from ansible import context
from ansible.plugins.callback import CallbackBase

from ..plugin_utils import host_results
from ..plugin_utils.counted import counted
from ..plugin_utils.equal_errors import group
from ..plugin_utils.host_values import HostValueError, text, without_host

MODULES = ("openfleet.gpu.layout", "openfleet.gpu.mig")

# Prefix of task errors in ansible-core 2.19 and later.
_TASK_FAILED = "Task failed: "

# Words for a run outside check mode.
_APPLIED = ("Applied", "created", "destroyed", "changed")

# Beginnings of messages with which site.yml stops a host because of an earlier error.
NO_PLAN = ("No plan for ", "no plan (")


@dataclass
class Counts:
    """Counts for a host: MIG instances by action, and GPUs with any change."""

    create: int = 0
    destroy: int = 0
    keep: int = 0
    changed: int = 0


@dataclass
class Summary:
    """A run's results so far. This class does not use Ansible's objects."""

    check_mode: bool
    # Hosts on which the module ran, including failed runs.
    hosts: set = field(default_factory=set)
    counts: dict = field(default_factory=dict)
    # In check mode only: hosts without a driver. `unknown` has hosts with unknown GPU models, `from_catalogue` hosts
    # that were planned from the model catalogue.
    unknown: set = field(default_factory=set)
    from_catalogue: set = field(default_factory=set)
    # Hosts with MIG modes that are pending until a reboot.
    rebooting: set = field(default_factory=set)
    reasons: dict = field(default_factory=dict)
    # For each host, the number of GPUs that have lost their entry.
    unmanaged: dict = field(default_factory=dict)

    def ran(self, host, result, check_mode):
        """Record a result of the module on a host. `check_mode` is the mode of the task."""
        self.hosts.add(host)
        self.unknown.discard(host)
        self.from_catalogue.discard(host)
        try:
            read = host_results.layout(host, {name: result.get(name) for name in ("counts", "forecast", "unmanaged")})
        except HostValueError as error:
            # An invalid result from one host must not prevent the summary.
            self.failed(host, error)
            return
        counts, forecast = read["counts"], read["forecast"] or {}
        kept = [gpu for gpu in read.get("unmanaged") or () if gpu["action"] != "release"]
        self.unmanaged[host] = len(kept)
        if self.check_mode and not result.get("driver_present"):
            counts = forecast.get("counts") if forecast.get("checked") else None
            (self.from_catalogue if counts else self.unknown).add(host)
        if not counts or check_mode != self.check_mode:
            return
        if host in self.rebooting:
            # The changes were counted before the reboot.
            self.rebooting.remove(host)
            return
        if result.get("reboot_required"):
            self.rebooting.add(host)
        create, destroy, keep, changed = (counts.get(name) or 0 for name in host_results.COUNTS)
        new = Counts(create, destroy, keep, changed)
        old = self.counts.get(host)
        if old and not self.check_mode:
            # Changes of two applied layouts are added, and instances count as kept if both kept them. Repeated plans
            # count once.
            new = Counts(
                old.create + new.create,
                old.destroy + new.destroy,
                min(old.keep, new.keep),
                max(old.changed, new.changed),
            )
        self.counts[host] = new

    def failed(self, host, msg):
        """Record why a task failed on a host."""
        first = without_host(host, (str(msg).strip() or "no reason given").splitlines()[0])
        if not (host in self.reasons and first.startswith(NO_PLAN)):
            self.reasons[host] = text(first)

    def recorded(self, host, error):
        """Record an error that site.yml collected, unless the reason is known.

        The error is a text or a failed result.
        """
        if error and host not in self.reasons:
            self.failed(host, error.get("msg") if isinstance(error, Mapping) else error)

    def failures(self, hosts):
        """Return a line for each reason why hosts failed."""
        return [str(equal) for equal in group((host, self.reasons.get(host, "see above")) for host in hosts)]

    def line(self):
        """Return the summary of all hosts in one line."""
        counts = self.counts.values()
        if not counts and not self.check_mode:
            return "Applied: nothing, on 0 of %s" % counted(len(self.hosts), "host")
        names = ("create", "destroy", "keep", "changed")
        totals = [sum(getattr(host_counts, name) for host_counts in counts) for name in names]
        gpus = counted(totals[3], "GPU")
        words = ("Plan", "to create", "to destroy", "to change") if self.check_mode else _APPLIED
        text = "%s: " % words[0]
        # Changes such as time slicing have no MIG instances.
        if any(totals[:3]) or not totals[3]:
            text += "%d %s, %d %s, %d kept; " % (totals[0], words[1], totals[1], words[2], totals[2])
        changed = sum(bool(host_counts.changed) for host_counts in counts)
        text += "%s %s on %d of %s" % (gpus, words[3], changed, counted(len(self.hosts), "host"))
        unmanaged = sum(self.unmanaged.values())
        if unmanaged:
            text += ", %s unmanaged (gpu_layout_unnamed)" % counted(unmanaged, "GPU")
        planned = self.unknown.union(self.counts)
        if self.check_mode and not self.hosts <= planned:
            text += ", no plan for %d" % len(self.hosts - planned)
        if self.from_catalogue:
            text += " (no driver yet, planned from the model catalogue: %s)" % ", ".join(sorted(self.from_catalogue))
        if self.unknown:
            text += " (not counted, because no driver answers and the GPU models are unknown: %s)" % (
                ", ".join(sorted(self.unknown))
            )
        return text


def waiting(host, result):
    """Return a line with the holders for each busy item for which a host waits."""
    try:
        busy = host_results.layout(host, {"busy": result.get("busy") or []})["busy"]
    except HostValueError as error:
        return [str(error)]
    return ["%s: waiting: %s is in use by %s" % (host, item["what"], ", ".join(item["who"])) for item in busy]


def collected_error(result):
    """Return the error in the result of a task that did not fail, or "".

    The playbook prints such an error later.
    """
    if result.get("failed_when_result") is not False:
        return ""
    if "driver_present" not in result:
        return str(result.get("msg") or "no reason given")
    forecast = result.get("forecast")
    problems = forecast.get("problems") if isinstance(forecast, Mapping) else None
    return str(problems[0]) if problems else ""


def parts(result):
    """Return a result's host name, task and content.

    Before ansible-core 2.19, the names of these attributes begin with an underscore.
    """
    host, task, returned = (
        getattr(result, name if hasattr(result, name) else "_" + name) for name in ("host", "task", "result")
    )
    return host.get_name(), task, returned


class CallbackModule(CallbackBase):
    """Ansible's entry point."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "openfleet.gpu.fleet_summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._summary = Summary(bool(context.CLIARGS.get("check")))

    def v2_runner_on_ok(self, result):
        host, task, returned = parts(result)
        if task.action in C._ACTION_SET_FACT:
            self._summary.recorded(host, (returned.get("ansible_facts") or {}).get("gpu_site__failure"))
        if not self._is_ours(task):
            return
        # A task with a loop returns one result per item.
        for item in returned.get("results", [returned]):
            error = collected_error(item)
            if error:
                self._summary.hosts.add(host)
                self._summary.failed(host, error)
            else:
                self._summary.ran(host, item, bool(task.check_mode))

    def v2_runner_retry(self, result):
        # Ansible reports the retry itself. This code adds the holders.
        host, task, returned = parts(result)
        if self._is_ours(task):
            for line in waiting(host, returned):
                self._display.display(line)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._failed(result)

    def v2_runner_on_unreachable(self, result):
        self._failed(result, "it could not be reached: ")

    def v2_playbook_on_stats(self, stats):
        if not self._summary.hosts:
            return
        self._display.banner("GPU FLEET")
        self._display.display(self._summary.line())
        ended = {host: stats.summarize(host) for host in sorted(stats.processed)}
        # A host has not failed if a rescue section or ignore_errors handled the error.
        lost = [host for host, counts in ended.items() if counts["failures"] or counts["unreachable"]]
        for line in self._summary.failures(lost):
            self._display.display("Failed: %s" % line, color=C.COLOR_ERROR)

    def _failed(self, result, prefix=""):
        host, task, returned = parts(result)
        if self._is_ours(task):
            self._summary.hosts.add(host)
        failed = [item for item in returned.get("results", []) if item.get("failed")]
        message = str((failed or [returned])[0].get("msg", ""))
        if prefix:
            # ssh prints its reason on several lines.
            message = prefix + " ".join(message.replace(_TASK_FAILED, "", 1).split())
        self._summary.failed(host, message)

    @staticmethod
    def _is_ours(task):
        return not {task.action, task.resolved_action}.isdisjoint(MODULES)
