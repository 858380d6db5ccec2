# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cache Ansible's module archives between runs of the tests.

The tests run ansible-playbook hundreds of times. Each run reads and parses all imports of each module, which takes a
fifth of the run's CPU time. This plugin replaces Ansible's folder for module archives by a link to a permanent folder.
The name of the permanent folder depends on all code in the archives. tests/leg puts this plugin's folder into
ANSIBLE_CALLBACK_PLUGINS. Benchmarks run without the plugin.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import ansible
from ansible import constants
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__

DOCUMENTATION = """
name: module_cache
type: aggregate
short_description: Keep the archives of modules between runs of the tests
description: [See the module.]
author: openfleet.gpu contributors
"""

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "ansible-modules"
#: Archives that no run has used for this time are removed, because they contain old code.
UNUSED_SECONDS = 24 * 3600
#: Since this release, ansible-core locks archives, so that several runs can share them.
LOCKED_SINCE = (2, 19)


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "module_cache"

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        if tuple(map(int, __version__.split(".")[:2])) < LOCKED_SINCE:
            return
        with suppress(ImportError, OSError):
            collection = Path(next(iter(importlib.import_module("ansible_collections.openfleet.gpu").__path__)))
            kept = CACHE / key(collection.resolve())
            if not kept.exists():
                forget_unused()
            kept.mkdir(parents=True, exist_ok=True)
            os.utime(kept)
            Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(kept)


def key(collection: Path) -> str:
    """Return an identifier of the code of ansible-core and of all collections."""
    installed = Path(ansible.__file__).parents[1]
    state = hashlib.sha256(f"{__version__} {installed} {installed.stat().st_mtime_ns} {collection}".encode())
    for folder in ("modules", "module_utils"):
        for path in sorted((collection / "plugins" / folder).rglob("*.py")):
            status = path.stat()
            state.update(f"{path} {status.st_mtime_ns} {status.st_size} {status.st_ino}\n".encode())
    return state.hexdigest()[:16]


def forget_unused() -> None:
    """Remove archives that no run has used for a day."""
    for folder in CACHE.glob("*"):
        with suppress(OSError):
            if folder.stat().st_mtime < time.time() - UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
