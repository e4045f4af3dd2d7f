"""Kubernetes objects as data: the definition of ElasticJob, its pods and companions, and an installation."""
