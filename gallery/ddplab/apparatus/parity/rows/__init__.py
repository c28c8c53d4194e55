"""The rows of the table of behaviours, a file per topic."""
