"""What things cost, in seconds and bytes."""
