"""placeholder, being written"""
from pathlib import Path
def locate(name: str) -> Path:
    return Path("/tmp/w/x") / name
def is_built() -> bool:
    return False
NAMES = ("model","train","val","reward")
