"""Recording an edition: run labs and claims on this machine and keep what came out (``python -m ddplab.recording``).

Only the standard library is imported here but where a lab runs: the book reads editions without torch.
"""
