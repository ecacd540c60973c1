"""Everything of Ray, in packages that lie at the height of the packages after which they are called.

`private`: the Ray of a job, with its keeper and raylets; `on_ray`: the runtime whose machines are those of a
Ray cluster; `ops`, `daemon` and `http`: what commands, the scheduler and the server do for either.
"""
