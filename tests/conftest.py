"""What all tests share."""

import torch

# The tests' tensors are small: a second thread waits more than it works, and on a busy machine it waits for long.
torch.set_num_threads(1)
