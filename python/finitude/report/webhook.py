"""`--on-event https://...`: sends each event to an address by POST. Called from the thread of on_event.py alone."""

from __future__ import annotations

import base64
import urllib.error
import urllib.parse
import urllib.request

SECONDS = 10.0  # for one address to answer


class Failed(Exception):
    """Why it was not delivered; without what may be secret in the address."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A POST that is redirected becomes a GET, which delivers nothing."""

    def redirect_request(self, *_: object) -> None:
        return None


def shown(address: str) -> str:
    """The address without path, query and user, which may hold a token."""
    parts = urllib.parse.urlsplit(address)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}" + ("/***" if parts.path not in ("", "/") or parts.query else "")


def post(address: str, line: bytes, seconds: float) -> None:
    """The event on that line, as JSON. Raises Failed."""
    parts = urllib.parse.urlsplit(address)
    headers = {"Content-Type": "application/json", "User-Agent": "finitude"}
    if parts.username is not None:
        user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    plain = urllib.parse.urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
    request = urllib.request.Request(plain, data=line.rstrip(b"\n"), headers=headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=min(seconds, SECONDS)):
            pass
    except urllib.error.HTTPError as e:
        e.close()
        raise Failed(f"answered {e.code}") from None
    except urllib.error.URLError as e:
        reason = e.reason
        raise Failed(getattr(reason, "strerror", None) or type(reason).__name__) from None
    except TimeoutError:
        raise Failed(f"did not answer in {min(seconds, SECONDS):.0f} s") from None
    except Exception as e:  # of http.client: an answer that is no HTTP; its text may hold the address
        raise Failed(f"could not be reached: {type(e).__name__}") from None
