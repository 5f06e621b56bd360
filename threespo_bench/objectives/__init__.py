"""Loss mathematics in torch, independent of any engine. Only these modules import torch, so importing the host does not."""
