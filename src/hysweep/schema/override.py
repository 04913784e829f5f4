"""One value in Hydra's override grammar, so that it comes back as it went in."""

from __future__ import annotations

import math
import re
from typing import Any

# Strings that Hydra's lexer takes as one string without quotes; anything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-]*\Z")
_TAKEN = re.compile(r"(true|false|null|nan|[+-]?inf|[+-]?infinity|yes|no|on|off)\Z", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-/]*\Z")
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*(?:\.(?:[A-Za-z_][A-Za-z0-9_\-]*|[0-9]+))*\Z")


def literal(value: Any) -> Any:
    """A value as OmegaConf is to take it: what looks like an interpolation is text."""
    if isinstance(value, dict):
        return {name: literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [literal(inner) for inner in value]
    is_text = isinstance(value, str) and "${" in value
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if is_text else value


def emit(value: Any) -> str:
    """`value` as the right-hand side of an override; parsing it again gives `value`.

    Covers None, bool, int, float, str, and lists and dicts of them. ``0.5_4.0`` stays a string: every string
    that is not plainly a word is quoted. ``${`` is escaped, so that it is text and no interpolation.

    Raises TypeError for any other type, ValueError for a dict key that the grammar cannot carry.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return value if _PLAIN.match(value) and not _TAKEN.match(value) else _quote(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(emit, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(k)}:{emit(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"no override can carry a {type(value).__name__}")


SAYABLE = "name it by letters, digits, - and _"


def refusal(key: str, value: Any) -> str:
    """Why no override can say ``key=value``; empty where one can."""
    if not _DOTTED.match(key):
        return "has a name that no override can carry"
    try:
        emit(value)
    except (TypeError, ValueError) as e:
        return str(e)
    return ""


def _quote(text: str) -> str:
    # Hydra's rule: within quotes a backslash is itself, except before a quote (and so at the end of the text),
    # where backslashes come in pairs. OmegaConf's rule, one layer down: \${ is the text ${.
    text = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)
    text = re.sub(r"(\\*)'", lambda m: m[1] * 2 + r"\'", text)
    text = re.sub(r"(\\+)\Z", lambda m: m[1] * 2, text)
    return f"'{text}'"


def _key(key: Any) -> str:
    if not isinstance(key, str) or not _KEY.match(key) or _TAKEN.match(key):
        raise ValueError(f"no override can carry the key {key!r} of a dict")
    return key
