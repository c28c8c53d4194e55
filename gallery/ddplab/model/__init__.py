"""What a DDP step costs, predicted: buckets, links, steps, how often to save; and the search for the best bucket."""
