"""Predict the U-curve: a solution"""


def step_seconds(
    layers: int,
    layer_bytes: int,
    cap_bytes: int,
    forward_s: float,
    backward_s: float,
    latency_s: float,
    bytes_per_s: float,
) -> float:
    """Return the seconds from the start of the forward to the end of the step."""
    free_s = 0.0  # when the link has sent all buckets so far
    nbytes = 0  # in the open bucket
    for layer in range(1, layers + 1):
        nbytes += layer_bytes
        if nbytes >= cap_bytes or layer == layers:  # the bucket closes with this gradient
            ready_s = forward_s + backward_s * layer / layers
            free_s = max(ready_s, free_s) + latency_s + nbytes / bytes_per_s
            nbytes = 0
    return free_s  # the last bucket is ready when the backward ends, so it arrives later
