# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check values beyond their type: limits of numbers, and formats of texts.

A rule is a function of the variable's value and name.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Callable, Mapping, Sequence

from ...module_utils import catalogue
from ...module_utils.errors import FleetError, LayoutError, Problem
from ...module_utils.layout.reader import quoted
from ...module_utils.techniques.forms import parse_layout
from ..site.losses import tolerated

#: Maximum for durations and counts: a year in seconds. A larger value is a mistake.
_MOST = 366 * 24 * 3600
_PORTS = 65535


class Refused(Exception):
    """A value breaks a rule. `problems` has the reasons."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


def bounds_of(name: str) -> tuple[int, int]:
    """Return the minimum and maximum of a variable's numbers."""
    if name.endswith("_port"):
        # Port 0 means "no exporter".
        return (0 if name == "gpu_monitoring_host_exporter_port" else 1, _PORTS)
    if name == "gpu_simulator_gpus":
        # The only numbers in this variable are each model's number of GPUs.
        return 1, catalogue.MOST_SIMULATED_GPUS
    if name.endswith(("_interval", "_interval_seconds")):
        return 1, _MOST
    return 0, _MOST


def waves(value: Any, name: str) -> None:
    """Check the sizes of waves. The format is the same as for `serial` in a play."""
    cure = 'Use numbers of hosts from 1, and percentages from 1%% to 100%%: %s: [1, "25%%", "100%%"].' % name
    sizes = value if isinstance(value, (list, tuple)) else [value]
    if not sizes:
        raise Refused(Problem(name, "the list is empty", cure))
    problems = []
    for number, size in enumerate(sizes):
        text = quoted(size)[1:-1]
        percent = re.fullmatch(r"([0-9]{1,3})%", text)
        count = re.fullmatch(r"[0-9]{1,9}", text)
        if isinstance(size, bool) or not (percent or count):
            problems.append(Problem("%s[%d]" % (name, number), "invalid wave size %s" % quoted(size), cure))
        elif count and int(text) < 1:
            problem = "a wave of %s hosts would change all hosts at once, without a canary" % text
            problems.append(Problem("%s[%d]" % (name, number), problem, cure))
        elif percent and not 1 <= int(percent.group(1)) <= 100:
            problems.append(Problem("%s[%d]" % (name, number), "%s is out of range" % text, cure))
    if problems:
        raise Refused(*problems)


def _tolerance(value: Any, name: str) -> None:
    try:
        tolerated(value, 0)
    except ValueError as error:
        raise Refused(Problem(name, str(error), "Write %s: 2, or %s: 5%%." % (name, name))) from None


def _form(pattern: str, what: str, example: str) -> Callable[[Any, str], None]:
    """Return a rule for the format of a text, or of each text in a list.

    `pattern` is a regular expression. An empty text is accepted as "no value".
    """

    def rule(value: Any, name: str) -> None:
        listed = isinstance(value, (list, tuple))
        for number, text in enumerate(value if listed else [value]):
            if (str(text) or listed) and not re.fullmatch(pattern, str(text)):
                where = "%s[%d]" % (name, number) if listed else name
                # Hide the part of a URL before `@`, which may have a password.
                shown = re.sub(r".*@", "(hidden)@", str(text), flags=re.DOTALL)
                raise Refused(Problem(where, '"%.60s" is not %s' % (shown, what), "Write it like %s." % example))

    return rule


def _by(parse: Callable[[Any], Any]) -> Callable[[Any, str], None]:
    """Return a rule that uses a later step's parser."""

    def rule(value: Any, name: str) -> None:
        try:
            parse(value)
        except LayoutError as error:
            raise Refused(*error.problems) from None
        except FleetError as error:
            where = error.where if error.where.startswith(name) else "%s: %s" % (name, error.where)
            raise Refused(Problem(where, error.problem, error.cure)) from None

    return rule


def _by_parser(module: str, function: str) -> Callable[[Any, str], None]:
    """Return a rule like `_by`, for a parser that is imported only when needed.

    Some parsers need NumPy. They are imported only if the inventory sets the variable.
    """

    def parse(value: Any) -> None:
        try:
            parser = getattr(importlib.import_module(module, __package__), function)
        except ImportError:
            # The playbook that reads the variable reports the controller's missing packages.
            return
        parser(value)

    return _by(parse)


def _models(value: Sequence[Any], name: str) -> None:
    problems = []
    for number, key in enumerate(value):
        problems += _unknown_model(key, "%s[%d]" % (name, number))
    if problems:
        raise Refused(*problems)


def _unknown_model(key: Any, where: str) -> list[Problem]:
    try:
        catalogue.find_model(str(key))
    except catalogue.CatalogueError as error:
        return [Problem(where, "the catalogue has no %s" % error.where, error.cure)]
    return []


def _simulated(value: Sequence[Mapping[str, Any]], name: str) -> None:
    problems = []
    for number, group in enumerate(value):
        problems += _unknown_model(group["model"], "%s[%d].model" % (name, number))
    most = catalogue.MOST_SIMULATED_GPUS
    count = sum(int(group.get("count", 1)) for group in value)
    if count > most:
        problems.append(Problem(name, "these are %d GPUs" % count, "A simulated host can have %d." % most))
    if problems:
        raise Refused(*problems)


def _commands(value: Sequence[Any], name: str) -> None:
    for number, command in enumerate(value):
        words = command if isinstance(command, (list, tuple)) else [command]
        if not words or not all(isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in words):
            cure = "Write a line of shell, or a list of words: [systemctl, stop, worker.service]."
            raise Refused(Problem("%s[%d]" % (name, number), "not a command", cure))


def _packing(value: Mapping[str, Any], name: str) -> None:
    try:
        options = importlib.import_module("..rightsize.options", __package__)
    except ImportError:
        return
    _by(lambda given: options.limits("host", None, None, given))(value, name)


def _ways(value: Sequence[Any], name: str) -> None:
    for number, way in enumerate(value):
        if not isinstance(way, Mapping) and way not in ("webhook", "mail", "wall", "home"):
            cure = "It is one of webhook, mail, wall and home, or {url: ...} or {to: ...}."
            raise Refused(Problem("%s[%d]" % (name, number), "unknown notification method", cure))


_duration = _form(
    r"\s*[0-9]{1,6}(?:\.[0-9]{1,6})?\s*[mhdw]\s*", "a length of time", "a number followed by m, h, d or w, such as 14d"
)
_absolute = _form(r"/[^\0\n]*", "an absolute path", "/var/lib/openfleet-gpu")
_sha256 = _form(r"(?:sha256:)?[0-9a-fA-F]{64}", "a SHA-256", "64 hexadecimal digits")
_fingerprints = _form(r"[0-9A-Fa-f ]{40,60}", "the fingerprint of a key", "C95B321B61E88C1809C4F759DDCAE044F796ECB0")
_address = _form(r"(?:https?|file)://[^\s]+", "an address", "https://mirror.example.org/path")
_mode = _form(r"0?[0-7]{3,4}", "the mode of a directory", '"0750"')
_account = _form(r"[a-z_][a-z0-9_.-]{0,31}", "the name of an account", "gpu-audit")
_spans = _form(r"[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdwy]))*", "a Prometheus duration", "30s, 12h or 15d")
_listen = _form(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9.-]*):[0-9]{1,5}", "an address and a port", "127.0.0.1:9090")

#: Rules by the name of the variable.
RULES: dict[str, Callable[[Any, str], None]] = {
    "gpu_layout": _by(parse_layout),
    "gpu_layout_expected_gpus": _models,
    "gpu_layout_keep_max": _by_parser("...module_utils.keep.keeps", "duration"),
    "gpu_layout_metrics_dir": _form(r"/\S*", "an absolute path without spaces", "/var/lib/node_exporter"),
    "gpu_layout_nvml_hashes": _form(r"sha256:[0-9a-f]{64}", "a hash of a file", "sha256: and 64 hexadecimal digits"),
    "gpu_layout_nvml_index_url": _address,
    "gpu_layout_readers": _account,
    "gpu_layout_state_directory": _absolute,
    "gpu_site_tolerate": _tolerance,
    "gpu_site_waves": waves,
    "gpu_simulator_gpus": _simulated,
    "gpu_drain_commands_before": _commands,
    "gpu_drain_commands_after": _commands,
    "gpu_drain_state_directory": _absolute,
    "nvidia_driver_repository_fingerprints": _fingerprints,
    "nvidia_driver_runfile_sha256": _sha256,
    "container_toolkit_repository_fingerprints": _fingerprints,
    "gpu_kubernetes_quotas": _by_parser("..schedulers.cluster.quotas", "parse_quotas"),
    "gpu_kubernetes_volcano_config_map": _form(
        r"[a-z0-9-]+/[a-z0-9.-]+", "a namespace and a name", "volcano-system/name"
    ),
    "gpu_owners": _by_parser("..audit.owners", "owners"),
    "gpu_monitoring_scrape_interval": _spans,
    "gpu_monitoring_scrape_timeout": _spans,
    "gpu_monitoring_evaluation_interval": _spans,
    "gpu_monitoring_prometheus_retention": _spans,
    "gpu_monitoring_directory": _absolute,
    "gpu_monitoring_prometheus_listen": _listen,
    "gpu_monitoring_alertmanager_listen": _listen,
    "gpu_audit_dir_mode": _mode,
    "gpu_audit_holidays": _by_parser("..audit.options", "holidays"),
    "gpu_audit_prices": _by_parser("..audit.options", "prices"),
    "gpu_audit_prometheus": _by_parser("..audit.options", "access"),
    "gpu_audit_thresholds": _by_parser("..audit.options", "thresholds"),
    "gpu_audit_user": _account,
    "gpu_audit_window": _duration,
    "gpu_bundle_url": _address,
    "gpu_rightsize_confidence": _by_parser("..rightsize.options", "share_of_workloads"),
    "gpu_rightsize_holidays": _by_parser("..audit.options", "holidays"),
    "gpu_rightsize_owners": _by_parser("..rightsize.reclaim_told", "owners"),
    "gpu_rightsize_packing": _packing,
    "gpu_rightsize_prices": _by_parser("..audit.options", "prices"),
    "gpu_rightsize_prometheus": _by_parser("..audit.options", "access"),
    "gpu_rightsize_reclaim_grace": _duration,
    "gpu_rightsize_reclaim_notice": _by_parser("..rightsize.reclaim_told", "notice_seconds"),
    "gpu_rightsize_reclaim_tell": _ways,
    "gpu_rightsize_sizing": _by_parser("..rightsize.options", "policy"),
    "gpu_rightsize_thresholds": _by_parser("..audit.options", "thresholds"),
    "gpu_rightsize_window": _duration,
    "gpu_rightsize_workloads": _by_parser("..rightsize.wishes", "wishes"),
}
