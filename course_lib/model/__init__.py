"""Single-process model: the oracle every parallel version must equal. No `torch.distributed` in here."""
