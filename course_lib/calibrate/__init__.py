"""Measure a GPU, fit the step-time model's constants to it and to runs of one's own.

`measure` times kernels and collectives, `fit` turns them and `runs` into constants, `course plan
--constants` takes these. SimuMax and vTrain profile in the same way before they predict. docs/planning.md.
"""
