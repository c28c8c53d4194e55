"""Which ``bucket_cap_mb`` suits a model on these ranks: measure, predict, measure again, and say how sure that is."""
