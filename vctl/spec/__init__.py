"""Reads text and JSON from outside into exact values. Modules are imported when first used: ``spec.ids``."""

from vctl import modules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.spec import (
        cluster_change,
        cluster_spec,
        fields,
        ids,
        job_request,
        notify,
        options,
        quantities,
        queue_settings,
        selectors,
        source,
        text,
        trace_size,
        tree_file,
    )

__getattr__ = modules_of(__name__)
