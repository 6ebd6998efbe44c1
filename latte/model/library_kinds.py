"""The kinds of the layers of the library, for messages about the names of recipe files."""

from __future__ import annotations

_KINDS = """
accuracy add attention batch_norm binary_cross_entropy concat conv dropout elu embedding flatten fully_connected
gelu group_norm grouped_conv gru gru_cell huber_loss instance_norm interpolation l1_loss layer_norm leaky_relu
log_softmax lrn lstm lstm_cell masked_attention max_pooling mean_pooling mean_squared_error multiply padding
permute pixel_softmax_loss positionwise_linear prelu projection relu relu6 relu_rnn_cell reshape residual_sum rnn
rnn_cell rows sequence_softmax_loss sigmoid silu softmax softmax_loss softplus split tanh transposed_conv
weighted_softmax_loss
"""
LIBRARY_KINDS = frozenset(_KINDS.split())
