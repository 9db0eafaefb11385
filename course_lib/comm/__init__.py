"""What ranks say to one another: collectives out of send and recv, and the groups of a mesh."""
