"""Finding an answer: search by section, and what people ask."""
