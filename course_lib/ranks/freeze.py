"""Imported last by the fork server: what it has loaded by now is there in every rank, and for good."""

import gc

gc.enable()
gc.freeze()  # a full collection in a rank would copy every page of what is loaded: 0.2 s
