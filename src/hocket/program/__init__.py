"""What each rank does: instructions, lowering, text form, verification."""
