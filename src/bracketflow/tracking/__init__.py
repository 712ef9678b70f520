"""`bracketflow track`: a file followed into a folder, with a page; it can be resumed."""
