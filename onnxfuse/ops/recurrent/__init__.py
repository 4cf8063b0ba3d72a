"""Recurrent layers: what they have in common, and the rows of LSTM, GRU and RNN."""
