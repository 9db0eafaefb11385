"""Where ranks meet before they have a process group."""

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def open_store() -> tuple[TCPStore, int]:
    """Serve what ranks tell each other to meet; returns the store, and its port on the loopback."""
    try:
        listener = socket.create_server(("127.0.0.1", 0))
    except OSError as error:
        raise OSError(
            f"ranks need one free port of this machine to meet; got {error.strerror}. End programs that hold "
            "ports (`ss -tan` lists them), and run it again"
        ) from error
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port
