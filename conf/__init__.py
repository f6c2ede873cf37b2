"""Configuration of Pagoda as Hydra YAML: data only, found through `pkg://conf`."""
