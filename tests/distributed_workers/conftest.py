"""Nothing here is a test: these modules run in processes that the tests start."""

collect_ignore_glob = ["*.py"]
