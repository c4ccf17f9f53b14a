"""Tables, timelines and explanations."""
