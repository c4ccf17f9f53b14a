"""The machines: devices, links, presets, the cluster file."""
