"""Predict the U-curve: how long does a step take?

Write `step_seconds(...)`: the seconds of one DDP step over a link, from its numbers alone.
With it you can say which bucket cap is best before you measure one.

- First the forward, `forward_s`; then the backward, `backward_s`. Nothing is sent earlier.
- The model has `layers` equal layers, whose gradients have `layer_bytes` bytes each. They
  become ready evenly over the backward: the first after 1/layers of it, the last at its end.
- Gradients fill buckets in the order in which they become ready. A bucket closes as soon as it
  holds at least `cap_bytes`; all buckets have the same cap; the last one may hold less.
- A bucket of n bytes takes `latency_s + n / bytes_per_s` on the link, once its last gradient
  is ready. There is one link: it serves one bucket at a time, in order.
- The step ends when the backward is over and the last bucket has arrived.
"""


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
    raise NotImplementedError
