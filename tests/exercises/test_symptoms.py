"""Wrong gradients name the mistake that made them: the numbers alone, without ranks."""

import pytest
import torch

from ddplab.grading.calls import Call
from ddplab.grading.checks import Wrong
from ddplab.grading.symptoms import expect_gradients, mean


def of(*values):
    """One rank's gradients, for parameters `a`, `b`, …"""
    names = "abcd"[: len(values)]
    return {
        name: None if value is None else torch.tensor([value, 2 * value], dtype=torch.float64)
        for name, value in zip(names, values, strict=True)
    }


LOCAL = [of(2.0, 5.0), of(10.0, -7.0), of(30.0, 14.0)]  # on three ranks


def message_for(seen, local=LOCAL, **more):
    with pytest.raises(Wrong) as wrong:
        expect_gradients(seen, mean(local), local, **more)
    return wrong.value.message


def test_the_mean_is_right():
    expect_gradients([of(14.0, 4.0)] * 3, mean(LOCAL), LOCAL)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (LOCAL, "nothing was averaged"),
        ([of(42.0, 12.0)] * 3, "holds the sum over the ranks"),
        ([of(14.0 / 3, 4.0 / 3)] * 3, "divided by 3 twice"),
        ([of(21.0, 6.0)] * 3, "divided by 2: the world size is written into the code"),
        ([of(2.0 / 3, 5.0 / 3), of(10.0 / 3, -7.0 / 3), of(10.0, 14.0 / 3)], "never summed"),
        ([LOCAL[0]] * 3, "a broadcast copies"),
        ([{"a": of(30.0)["a"], "b": torch.tensor([14.0, 28.0]).double()}] * 3, "the reduction is MAX"),
        ([{"a": torch.tensor([600.0, 4800.0]).double(), "b": torch.tensor([-490.0, -3920.0]).double()}] * 3, "PRODUCT"),
        ([of(0.0, 0.0)] * 3, "is zero on every rank"),
        ([of(14.0, 4.0), *LOCAL[1:]], "right on rank 0 only"),
        ([of(14.0, 4.0), of(14.0, 4.0), of(None, None)], "no gradient on rank 2"),
        ([of(float("inf"), float("nan"))] * 3, "divided by zero"),
        ([of(1.0, 3.0)] * 3, "none of the usual mistakes"),
        ([{name: part[:1] for name, part in of(14.0, 4.0).items()}] * 3, "shape (1,), and the parameter has (2,)"),
    ],
)  # fmt: skip
def test_wrong_numbers_are_explained(seen, words):
    assert words in message_for(seen)


def test_the_numbers_of_the_first_wrong_element_are_shown():
    message = message_for([of(14.0, 12.0)] * 3)
    assert message.startswith("`b` (the other 1 is right) holds the sum")
    assert (
        "Element 0 of `b` is 12, 12 and 12 on ranks 0, 1 and 2, whose own gradients gave 5, -7 and 14; right is 4."
        in message
    )


def test_a_rank_without_a_gradient_counts_as_zero():
    local = [of(6.0), of(None), of(12.0)]
    expect_gradients([of(6.0)] * 3, mean(local), local)
    assert "divided by the number of ranks that have it, not by 3" in message_for([of(9.0)] * 3, local)
    nobody = [of(None)] * 3
    expect_gradients(nobody, mean(nobody), nobody)
    assert "although no rank computed one" in message_for([of(0.0)] * 3, nobody)


def test_a_missing_wait_is_recognized():
    flights = [[Call("all_reduce", 2, "float32", asynchronous=True, waited=False)]] * 3
    assert "1 of 1 asynchronous calls were never waited for" in message_for(LOCAL, calls=flights)
    flights = [[Call("all_reduce", 2, "float32", asynchronous=True, waited=True)]] * 3
    assert "is lost, a division too" in message_for([of(42.0, 12.0)] * 3, calls=flights)
