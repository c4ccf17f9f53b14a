"""hocket: a training step written for one device, run as well as possible on whatever cluster there is."""
