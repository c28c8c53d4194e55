"""What a lab printed, drew and measured, in pages."""
