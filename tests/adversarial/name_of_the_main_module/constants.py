MAIN = "__main__"
