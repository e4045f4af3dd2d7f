"""Advice about the size of a job, from its own history: `pace` measures it, `advise` decides.

The global batch of a job does not depend on its size, so a sample is worth the same at every size. Its samples per
second are its progress: throughput is goodput.
"""

from pliant.core.autoscale.advise import Advice, ScalingFacts, advise, facts_of
from pliant.core.autoscale.pace import JobPace

__all__ = ["Advice", "JobPace", "ScalingFacts", "advise", "facts_of"]
