"""What a student reads: report, card, progress."""
