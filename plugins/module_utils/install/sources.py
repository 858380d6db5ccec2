# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the sources of an installation only to hosts that need them.

A module that needs the sources returns `sources_needed`. plugin_utils/on_demand.py then runs it again with the sources
(docs/installed-code.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any, Callable, Mapping

from .. import systemd_reload
from ..processes.command import run_to_end
from .files import Installation, InstallError


class SourcesNeededError(Exception):
    """The host needs the sources. Nothing was changed."""


class Sources:
    """Texts from the controller, by name.

    On the host, only their digest is known until they are sent.
    """

    def __init__(self, digest: str, packed: str | None = None) -> None:
        self.digest, self._packed = digest, packed

    def texts(self) -> dict[str, str]:
        """Return the texts. Raises SourcesNeededError if they were not sent."""
        if self._packed is None:
            raise SourcesNeededError
        return json.loads(zlib.decompress(base64.b64decode(self._packed)))


def digest(sources: Mapping[str, str]) -> str:
    """Return the digest of a set of sources."""
    parts = [part for item in sorted(sources.items()) for part in item]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def pack(sources: Mapping[str, str]) -> str:
    """Return the sources in packed form, for the module's parameter."""
    return base64.b64encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()


def argspec() -> dict[str, Any]:
    """Return the common options of modules that have sources.

    They are documented in doc_fragments/install.py.
    """
    return {
        "root": {"type": "path", "default": "/"},
        "on_busy": {"type": "str", "choices": list(systemd_reload.POLICIES), "default": systemd_reload.FAIL},
        "busy_timeout": {"type": "int", "default": 600},
        "sources_digest": {"type": "str", "default": ""},
        # The value is not secret, but would fill the host's log.
        "sources": {"type": "str", "no_log": True},
    }


def bring_about(
    params: Mapping[str, Any],
    check_mode: bool,
    body: Callable[[Mapping[str, Any], Installation, Sources], Mapping[str, Any] | None],
) -> dict[str, Any]:
    """Run `body` with the parameters, under the installation lock.

    Returns the module's result, which includes the result of `body`. Raises FleetError.
    """
    # Other users must be able to read the installed files.
    os.umask(0o022)
    target = Installation(Path(params["root"]), check_mode)
    sources = Sources(params["sources_digest"], params["sources"])
    try:
        _guard(params, target, lambda rehearsal: body(params, rehearsal, sources))
        with target.locked():
            more = body(params, target, sources) or {}
    except SourcesNeededError:
        return {"changed": False, "sources_needed": True}
    except OSError as error:
        raise InstallError(str(error.filename), "%s" % error.strerror, "Run as root (become: true).") from error
    return dict(target.result(), **more)


def _guard(params: Mapping[str, Any], target: Installation, body: Callable[[Installation], Any]) -> None:
    """Refuse a systemd reload that would detach GPUs from containers.

    On a host with such containers, runs the body first in check mode, to find out whether a unit file changes. Raises
    ApplyError before the first change.
    """
    if not systemd_reload.containers_at_risk(target.root, run_to_end):
        return
    rehearsal = Installation(target.root, True)
    body(rehearsal)
    if rehearsal.reloads:
        systemd_reload.guard(target.root, params["on_busy"], params["busy_timeout"], target.check, run_to_end)
