"""The ops in plain torch: the truth every fast path is compared with, and the path of devices without one."""
