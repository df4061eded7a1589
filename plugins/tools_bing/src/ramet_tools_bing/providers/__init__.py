"""Who answers searches: services over HTTP, a retrieval server, an offline corpus."""
