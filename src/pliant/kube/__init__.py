"""Kubernetes: the custom resource `ElasticJob`, and the operator that runs its pods.

`reconcile` decides and is pure. `operator` observes and acts, and is the only module that imports a Kubernetes client.
"""
