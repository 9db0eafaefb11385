"""Lab 07: FLOPs, MFU and what keeps it low."""
