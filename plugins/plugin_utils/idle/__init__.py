# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a GPU that is held is idle. Pure: docs/audit.md, "When is a GPU idle?".

rhythm    the quiet times of one holder: the present one, and the longest that ended
rule      from how long a quiet time is idle
signals   what counts as a sign of work, and which of it is not measured
holidays  days that do not count as quiet
"""
