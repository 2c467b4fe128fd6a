"""The type checker that the tests put around every function of `tfbook`."""

import beartype

# As in Python's typing rules, an int is fine where a float is asked for.
check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
