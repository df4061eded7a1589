"""Files and JSON, read and written safely."""
