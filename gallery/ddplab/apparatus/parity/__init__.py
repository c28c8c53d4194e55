"""Parity: small training loops that run with two wrappers, and what each of them does."""
