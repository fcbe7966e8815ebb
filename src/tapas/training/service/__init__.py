"""Workers and servers that train one model, asynchronously: the paper's Algorithm 2."""
