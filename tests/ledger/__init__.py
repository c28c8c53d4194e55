"""The ledger of passes: which tests need not run again, as all that they read is what it was when they passed."""
