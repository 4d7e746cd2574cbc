STORE = {}
