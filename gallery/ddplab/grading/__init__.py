"""Grading a learner's file on real ranks: exercises, checks, and what wrong results mean."""
