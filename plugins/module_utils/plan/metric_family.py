# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the samples of a Prometheus metric, and the labels of a GPU."""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

from dataclasses import field
from typing import Mapping

from ..frozen import frozen
from ..model import Gpu

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


@frozen
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    #: For HISTOGRAM: "_bucket", "_sum" or "_count".
    suffix: str = ""


@frozen
class Family:
    """The samples of one metric."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def labels_of(uuid: str, gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """Return a GPU's labels.

    The index is empty if the GPU does not answer.
    """
    return {"gpu_uuid": uuid, "gpu_index": str(gpus[uuid].index) if uuid in gpus else ""}
