"""Programs synthesised by A* over Hoare triples (HAP, section 4), from both ends of a step at once."""
