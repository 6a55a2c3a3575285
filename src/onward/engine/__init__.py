"""The seam between the queue and its stores: the verbs, their values, and what an engine says it can do."""
