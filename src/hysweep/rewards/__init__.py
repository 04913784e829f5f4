"""Rewards: which of them scores a row, ready ones, and what stands between them and verl's reward loop.

Most of it runs inside verl's reward workers. Only `routes` is for the other rooms: it imports nothing heavy.
"""

from hysweep.rewards.routes import (
    PARTS,
    READY,
    UNSCORED,
    Route,
    Term,
    encode,
    knows,
    names_more,
    read_routes,
    route_for,
    servers_of,
    strayed,
    unscored,
)

__all__ = [
    "PARTS",
    "READY",
    "UNSCORED",
    "Route",
    "Term",
    "encode",
    "knows",
    "names_more",
    "read_routes",
    "route_for",
    "servers_of",
    "strayed",
    "unscored",
]
