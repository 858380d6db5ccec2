# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a table of prices to recording rules of Prometheus."""

from __future__ import annotations

DOCUMENTATION = r"""
name: price_rules
short_description: Make recording rules for GPU prices
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Makes one rule for each row of the table. The first row that matches a GPU's model applies.
  - A GPU has one price, even if it is partitioned.
options:
  _input:
    description:
      - C(model) is a glob that is matched against the name of the model, with or without the vendor's name before it. C(price)
        is the price of one GPU for one hour.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the rules
  ansible.builtin.debug:
    msg: "{{ [{'model': 'H100*', 'price': 2.4}, {'model': '*', 'price': 1}] | openfleet.gpu.price_rules }}"
"""

RETURN = r"""
_value:
  description: Rules with the keys C(record) and C(expr).
  type: list
  elements: dict
  sample:
    - record: gpu:price_per_hour
      expr: 0 * max without (driver_version, instance, job, mig_instance, mig_profile, workload)
        (gpu:info{model=~"(NVIDIA )?H100.*"}) + 2.4
    - record: gpu:price_per_hour
      expr: 0 * max without (driver_version, instance, job, mig_instance, mig_profile, workload)
        (gpu:info{model=~"(NVIDIA )?.*", model!~"(NVIDIA )?H100.*"}) + 1.0
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.openfleet.gpu.plugins.plugin_utils.promql import literal, quote

RECORD = "gpu:price_per_hour"
# Labels that describe a part of the GPU or its exporter's state, and do not identify the GPU.
PART_LABELS = "driver_version, instance, job, mig_instance, mig_profile, workload"


def price_rules(prices):
    """See DOCUMENTATION."""
    rules, earlier = [], []
    for number, line in enumerate(prices):
        where = "gpu_monitoring_prices[%d]" % number
        try:
            price = float(line["price"])
            model = str(line["model"])
        except (KeyError, TypeError, ValueError) as error:
            raise AnsibleFilterError(
                "%s: a row needs a model and a number as its price, for example {model: H100*, price: 2.40} (%r)."
                % (where, error)
            ) from error
        if not 0 <= price < float("inf"):
            raise AnsibleFilterError(
                "%s.price: %r is not a price. Set the price of one GPU for one hour." % (where, line["price"])
            )
        pattern = glob_pattern(model)
        exclusions = "".join(", model!~%s" % quote(earlier_pattern) for earlier_pattern in earlier)
        series = "gpu:info{model=~%s%s}" % (quote(pattern), exclusions)
        rules.append({"record": RECORD, "expr": "0 * max without (%s) (%s) + %s" % (PART_LABELS, series, repr(price))})
        earlier.append(pattern)
    return rules


def glob_pattern(glob):
    """Convert a glob with * and ? to an RE2 expression. Prometheus anchors it.

    The expression also matches names with the prefix `NVIDIA `.
    """
    parts = {"*": ".*", "?": "."}
    return "(NVIDIA )?" + "".join(parts.get(char) or literal(char) for char in glob)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"price_rules": price_rules}
