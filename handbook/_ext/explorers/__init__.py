"""Elements that move or answer in a browser, and are figures everywhere else."""
