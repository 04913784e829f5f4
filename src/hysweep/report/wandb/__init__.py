"""Weights & Biases, the only door to its client: sending runs that were written offline, the study as a run, a report.

Nothing here is imported before one of its verbs is asked for.
"""
