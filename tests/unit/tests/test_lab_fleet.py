# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the demo's files, except the reports."""

from __future__ import annotations

import os
import stat

from tests.lab.fleet import private_log


def test_log_is_readable_for_owner_and_group_only(tmp_path):
    log = tmp_path / "second-run.json"
    log.write_text("of an earlier run")
    log.chmod(0o644)
    former = os.umask(0)
    try:
        with private_log(log) as output:
            output.write("{}")
    finally:
        os.umask(former)
    assert stat.S_IMODE(log.stat().st_mode) == 0o640 and log.read_text() == "{}"
