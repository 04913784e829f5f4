"""Rows for verl: converted from other shapes, prepared from known sets, checked before a job reads them.

verl reads five columns: data_source, prompt (chat messages), ability, reward_model (with the ground truth), extra_info.
The modules import pyarrow, and `datasets` where a set comes from a hub, so none of them is imported here.
"""
