"""What torch's optimizers can and one whose state lies in shards cannot: each in one sentence."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.optim import Optimizer


class ShardedOptimizer(Optimizer):
    """Refuse to be saved, copied or extended: shards under numbers mean nothing elsewhere."""

    _is_built = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after construction: the buckets are cut."""
        if self._is_built:
            raise ValueError(
                "all parameter groups must be known when ZeroOptimizer cuts its buckets; got another one. "
                "Give it at construction."
            )
        super().add_param_group(param_group)

    def state_dict(self) -> NoReturn:
        """Refused: it would save shards under numbers that no other optimizer has."""
        _refuse("state_dict")

    def load_state_dict(self, _state_dict: Any) -> NoReturn:
        """Refused, as `state_dict` is."""
        _refuse("load_state_dict")

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        _refuse("deepcopy")

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        _refuse("pickle")


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"a sharded optimizer is saved and read by the checkpoint package; got a call of {what}(). "
        "Use state_of(model, optimizer) and Checkpoints."
    )
