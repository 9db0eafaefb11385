"""How nanotron gives layers to pipeline stages: by the weights of its matrices, the output head among them.

Reference: github.com/huggingface/nanotron, `src/nanotron/models/base.py` (`build_model`) and
`models/llama.py` (`get_block_compute_costs`). The head counts as V / (4 D + 3 F) layers, so that the first
stages of a small model hold more layers than the last one.
"""

from __future__ import annotations

from collections.abc import Mapping


def layers_of_stages(sizes: Mapping[str, float]) -> list[int]:
    """Return the layers of each stage: a stage ends with the layer that takes it past its share."""
    pp, layers = int(sizes.get("pp", 1)), int(sizes["L"])
    total = layers + sizes["V"] / (4 * sizes["D"] + 3 * sizes["F"])
    found = [0] * pp
    stage = 0
    for layer in range(1, layers + 1):
        found[stage] += 1
        if layer > total * (stage + 1) / pp:
            stage = min(stage + 1, pp - 1)
    return found
