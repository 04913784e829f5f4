"""Kinds of GPU by name: what a profile or a #SBATCH line says, and how much memory such a card has."""

from __future__ import annotations

import re
from difflib import get_close_matches

# GiB as `nvidia-smi` reports them; none where one name is sold with several sizes.
GPUS: dict[str, float | None] = {
    "GB300": None, "GB200": None, "GH200": None, "B300": None, "B200": None, "B100": None, "H200": 139.8,
    "H100": 79.1, "H800": 79.1, "H20": 95.6, "A100": None, "A800": None, "A40": 45.0, "A30": None, "A10": None,
    "L40S": 44.7, "L40": 44.7, "L20": None, "L4": None, "T4": None, "V100": None, "P100": None, "MI300X": 192.0,
    "RTX4090": None, "RTX3090": None, "RTX6000": None, "A6000": None, "MI325X": None, "MI250X": None,
}  # fmt: skip


def kind_of(name: str) -> str | None:
    """The kind that a name speaks of, as H100 of nvidia_h100_80gb_hbm3 or gpu:h100:8; None where none is known.

    An o that a number goes on with is a zero that was mistyped: H20O is no H20.
    """
    return next(
        (kind for kind in GPUS if re.search(rf"(?<![a-z0-9]){kind.lower()}(?![0-9]|o+(?![a-z]))", name.lower())), None
    )


def mistyped(name: str, gib: float | None = None) -> str | None:
    """The kind that a name which speaks of none was probably meant to be, as H100 of H1OO; None for a site's own.

    gib: of its memory, by which H20O is an H20 or an H200.
    """
    plain = name.upper().translate(str.maketrans("OIL", "011"))
    by_look = {kind.translate(str.maketrans("OIL", "011")): kind for kind in GPUS}
    close = [by_look[look] for look in get_close_matches(plain, by_look, n=4, cutoff=0.7)]
    return min(close, default=None, key=lambda kind: not gib or abs((GPUS[kind] or 0) - gib) > gib / 20)
