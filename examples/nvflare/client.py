"""A client of NVFlare: one step of SGD in each round, and its weights as the result.

The job asks for their difference, which NVFlare computes.
"""

import nvflare.client as flare
import torch
from network import build, examples

flare.init()
inputs, labels = examples(int(flare.get_site_name().rpartition("-")[2]) - 1)
while flare.is_running():
    received = flare.receive()
    model = build()
    model.load_state_dict(received.params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": 1}))
