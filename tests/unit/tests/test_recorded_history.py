# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the lab's simulated history has the series that rules would record."""

from __future__ import annotations

import re

import yaml

from tests.lab.fleet import REPOSITORY
from tests.lab.prometheus import Sample
from tests.lab.recorded_history import HELD, NOBODY, STEP, Subject, text

ROLL_UPS = REPOSITORY / "roles" / "gpu_monitoring" / "files" / "rollups.yml"
PLACE = ("GPU-1", "")


def rules() -> dict[str, str]:
    groups = yaml.safe_load(ROLL_UPS.read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def recorded(*told: str) -> set[str]:
    """Return the names of the series that are simulated for a GPU with these metrics."""
    labels = {"host": "a", "gpu_uuid": PLACE[0]}
    subject = Subject(labels, {name: Sample(labels, 0.0) for name in told})
    lines = "".join(text({PLACE: subject}, {PLACE: NOBODY}, 0, STEP)).splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")} - {"gpu:info"}


def test_complete_recorded_gpu_has_every_roll_up():
    known = rules()
    # The rules read exporters' series with these names.
    live = set(re.findall(r"\bgpu:[a-z_]+\b(?!:)", " ".join(known.values()))) - set(known)
    made = recorded(*live) - {"gpu:memory_total_bytes"}
    assert made <= {*known, HELD}
    assert {"gpu:busy_ratio:avg5m", "gpu:activity_ratio:max5m", "gpu:tensor_active_ratio:avg5m", HELD} <= made


def test_missing_series_are_not_made_up():
    assert recorded() == {HELD}
    assert recorded("gpu:busy_ratio") == {HELD, "gpu:busy_ratio:avg5m", "gpu:activity_ratio:max5m"}
