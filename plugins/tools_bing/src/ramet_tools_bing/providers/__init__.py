"""Providers of answers to searches: services over HTTP, a retrieval server, an offline corpus."""
