"""Reading pages of the web: which addresses may be read, how they are downloaded, and what of them is text."""
