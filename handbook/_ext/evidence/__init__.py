"""What an edition holds, read: labs, their evidence, the tests of the claims and their results."""
