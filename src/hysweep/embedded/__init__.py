"""What lets real verl run on a machine with no GPU: a CPU platform, a small rollout server, a tiny Hy3 and its task.

Most of it runs inside verl's processes. Only `assets` is for the other rooms: it knows where things are, and no torch.
"""
