"""`tapas serve`: trained models behind HTTP, as an API for programs and an explorer for people.

served_model    a model that ranks requests in batches
indexed_model   one whose items are found by an approximate index
models          the models of a server, and their replacement by newer ones
batches         requests that arrive together are scored together
schema          what clients send and get, as types
api             the answers to programs
explorer        the answers to the page in static/
item_map        places of items on its map
openapi         /openapi.json and /docs, from the types
post            the way past Starlette for what programs ask most
request_errors  what goes wrong with a request, as a status and one sentence
measurements    what /metrics tells
guard           who may ask, and how much at once
connection      slow and silent clients
server          the process: its socket, its signals, its end
"""
