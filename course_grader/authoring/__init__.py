"""From a lab's source to a notebook, and filling one in."""
