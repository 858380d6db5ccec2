# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read how much offline work was done on GPUs of online tenants.

Tenants count their GPU time themselves, so a tenant can forge it. The audit only shows it, and never more than the
whole time of a GPU.
"""

from __future__ import annotations

from collections import defaultdict

from .asking import Asking
from .model import Colocation

#: Several exporters can report the same tenant. The maximum counts it once.
_TIME = (
    "sum by (host, gpu_uuid, latency) (max by (host, gpu_uuid, tenant, latency) "
    '(increase(gpu:tenant_gpu_seconds_total{latency=~"online|offline",%%(where)s}[%ds])))'
)


def colocation(asking: Asking, span_seconds: float) -> Colocation | None:
    """Return the gain of colocation, or None if no GPU had online and offline work.

    Raises PrometheusError.
    """
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for sample in asking.ask(_TIME % max(1, round(span_seconds))):
        place = (sample.labels.get("host", ""), sample.labels.get("gpu_uuid", ""))
        seconds[place][sample.labels.get("latency", "")] = min(max(0.0, sample.value), span_seconds)
    both = [found for found in seconds.values() if len(found) == 2]
    if not both:
        return None
    online, offline = (sum(found[latency] for found in both) / 3600 for latency in ("online", "offline"))
    return Colocation(len(both), round(online, 2), round(offline, 2))
