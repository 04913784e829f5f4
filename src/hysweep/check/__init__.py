"""`Trial` -> every `Problem` at once: what verl, Megatron or vLLM would refuse, or ignore, and when."""

from hysweep.check.machine import examine, lacks_for
from hysweep.check.rules import RULES, check_trial, errors
from hysweep.schema.finding import Finding

__all__ = ["RULES", "Finding", "check_trial", "errors", "examine", "lacks_for"]
