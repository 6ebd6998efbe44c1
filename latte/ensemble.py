"""Ensembles: arrays of the same neuron, and layers with explicit loops."""

from latte.model.ensemble import AccuracyEnsemble, ActivationEnsemble, DataEnsemble, Ensemble, LossEnsemble

__all__ = ["AccuracyEnsemble", "ActivationEnsemble", "DataEnsemble", "Ensemble", "LossEnsemble"]
