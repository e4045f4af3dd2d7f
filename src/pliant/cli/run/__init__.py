"""`pliant run`: its options, and the plan made from them."""
