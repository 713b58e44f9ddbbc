"""Parts of training that know their numbers, and little of who uses them."""
