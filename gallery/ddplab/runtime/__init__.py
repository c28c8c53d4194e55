"""Running code on ranks: launch, the life of a rank, clocks, and the evidence that a script leaves."""
