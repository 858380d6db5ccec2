# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask one server over HTTP, and no other that it names: passwords, tokens and reports are for that server alone."""

from __future__ import annotations

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Make each redirection an HTTPError with its status."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
