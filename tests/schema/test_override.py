"""A value goes through Hydra's grammar, and a layer of bash, and comes back as it was (cases 28, 29)."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hysweep.schema.override import emit

PARSER = OverridesParser.create()


def round_trip(value: Any) -> Any:
    [word] = shlex.split(shlex.quote(f"key={emit(value)}"))
    override = PARSER.parse_override(word)
    assert not override.is_sweep_override()
    cfg = OmegaConf.create({"key": None})
    OmegaConf.update(cfg, "key", override.value(), merge=True, force_add=True)
    result = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(result, dict)
    return result["key"]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.text(alphabet="\\'\"${}[](),:=# ab\n"),
)
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda k: k not in ("null", "true", "false", "nan", "inf", "on", "off", "yes", "no")
)


@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
    )
)
def test_what_goes_in_comes_out(value: Any) -> None:
    result = round_trip(value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "/ckpt/epoch=9-step=1.ckpt", "x,y", "foo#bar", "日本", "(1,2)", "E|t*5|t*6,L", "1_000", "nan", "inf", "1e-6",
        "None", "null", "0.5_4.0", "0.5_5", "2_4", "it's", "", "/data/$USER/x", "${x}", "a\nb", "True", "007",
        " x ", "\\",
    ],
)  # fmt: skip
def test_strings_stay_strings(text: str) -> None:
    assert round_trip(text) == text


def test_numbers_keep_their_type() -> None:
    assert emit(1.0) == "1.0"
    assert isinstance(round_trip(1.0), float)
    assert round_trip(float("inf")) == float("inf")


def test_what_no_override_can_carry_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        emit({1, 2})
    with pytest.raises(ValueError, match="key"):
        emit({"a b": 1})
