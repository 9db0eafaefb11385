"""What an instructor runs: release, collect, autograde, report."""
