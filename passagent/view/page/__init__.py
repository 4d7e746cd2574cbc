"""The page: runs, trees, candidates and conversations to look at in a browser, live or in one file."""
