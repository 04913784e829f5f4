"""Whether Weights & Biases can be reached from where a trainer is about to log: its client ends a trainer where not."""

from __future__ import annotations

import configparser
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

WITHIN_S = 10.0
_DEFAULT = "https://api.wandb.ai"
_PROXIES = ("http_proxy", "https_proxy")


def logs_online(environment: Mapping[str, str], named: Mapping[str, str]) -> bool:
    """Whether a trainer with this environment would wait for W&B; `named`: what its study has set of it."""
    return "WANDB_RUN_ID" in named and environment.get("WANDB_MODE", "online") in ("online", "shared")


def why_unreachable(environment: Mapping[str, str]) -> str | None:
    """What stands in the way of W&B's server; None: it answers, be it with an error, or its certificate is another
    matter that its client may know about."""
    url = base_url(environment)
    proxies = {name.removesuffix("_proxy"): value for name, value in _lowered(environment).items() if name in _PROXIES}
    handler = urllib.request.ProxyHandler(proxies if not _is_direct(url, environment) else {})
    try:
        with urllib.request.build_opener(handler).open(url, timeout=WITHIN_S):
            return None
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as e:
        return None if isinstance(e.reason, ssl.SSLError) else f"{url}: {e.reason}"
    except TimeoutError:
        return f"{url}: no answer within {WITHIN_S:.0f} s"
    except ssl.SSLError:
        return None
    except (OSError, ValueError) as e:
        return f"{url}: {e}"
    except Exception:  # what answers is no web server, or speaks its own kind of HTTP: that is for the client to judge
        return None


def base_url(environment: Mapping[str, str]) -> str:
    """As the client finds it: the environment, what `wandb login --host` has noted, the public one."""
    if url := environment.get("WANDB_BASE_URL"):
        return url
    home = environment.get("WANDB_CONFIG_DIR") or f"{environment.get('HOME', '')}/.config/wandb"
    noted = configparser.ConfigParser(interpolation=None)
    try:
        noted.read(Path(home) / "settings", encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return _DEFAULT
    return noted.get("default", "base_url", fallback=_DEFAULT)


def _lowered(environment: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in environment.items() if value}


def _is_direct(url: str, environment: Mapping[str, str]) -> bool:
    host = url.partition("://")[2].partition("/")[0]
    exempt = {"no": _lowered(environment).get("no_proxy", "")}
    return bool(urllib.request.proxy_bypass_environment(host, exempt))  # type: ignore[attr-defined]
