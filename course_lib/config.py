"""Say how large a model is, as plain numbers that every layer can read.

No torch here: cost formulas, planners and the model itself share one description. Alphabet of tensor shapes:
B microbatch, S sequence, D model, F ffn, N query heads, K kv heads, H head dim, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES = ("vocab_size", "model_dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim", "max_seq_len")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Describe a Llama-style decoder.

    Raises: ValueError if a size is not positive, or the heads do not divide evenly.
    """

    vocab_size: int = 256
    """V, number of token ids."""
    model_dim: int = 64
    """D, width of the residual stream."""
    num_layers: int = 2
    """L, number of decoder blocks."""
    num_heads: int = 4
    """N, query heads; the head dim is H = D / N and must be even (RoPE rotates pairs)."""
    num_kv_heads: int = 2
    """K, key and value heads; N / K query heads share one."""
    ffn_dim: int = 128
    """F, hidden width of the SwiGLU feed-forward network."""
    max_seq_len: int = 128
    """Longest sequence, in tokens, that the model accepts."""
    rope_theta: float = 10_000.0
    """Base of the RoPE wavelengths."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_embeddings: bool = False
    """Whether the output head is the embedding matrix itself."""

    def __post_init__(self) -> None:
        self._check_positive()
        self._check_heads()

    def _check_positive(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer; got {value!r}. Choose 1 or more.")
        for name in ("rope_theta", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive; got {getattr(self, name)!r}. Use the default.")

    def _check_heads(self) -> None:
        if self.model_dim % self.num_heads or (self.model_dim // self.num_heads) % 2:
            raise ValueError(
                f"model_dim must be num_heads times an even head dim; got model_dim={self.model_dim}, "
                f"num_heads={self.num_heads}. Use model_dim = num_heads * head_dim."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads; got num_heads={self.num_heads}, "
                f"num_kv_heads={self.num_kv_heads}. Use as many query heads for every kv head."
            )

    @property
    def head_dim(self) -> int:
        """H = D / N."""
        return self.model_dim // self.num_heads

    @property
    def num_params_per_layer(self) -> int:
        """Parameters of one block: D(N + 2K)H + NHD attention, 3DF feed-forward, 2D norms."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        return self.model_dim * (heads * self.head_dim + 3 * self.ffn_dim + 2)

    @property
    def num_params(self) -> int:
        """Parameters of the model: VD embedding, L blocks, D final norm, VD head (none if tied)."""
        embeddings = (1 if self.tied_embeddings else 2) * self.vocab_size * self.model_dim
        return embeddings + self.num_layers * self.num_params_per_layer + self.model_dim
