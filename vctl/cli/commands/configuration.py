"""``vctl config``: the settings and where they come from."""

import os
from collections.abc import Sequence
from typing import Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import READS
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, listing, single
from vctl.cli.table import Column, matters
from vctl.operations.declare import Opt


@command("config show", "vctl config show --origin", "vctl config show -o json", common=READS)
def show(
    call: Call, origin: Annotated[bool, Opt("--origin", help="Also show the origin of each value.")] = False
) -> Answer:
    """Show every setting with its value."""
    items: Sequence[Data] = [
        {
            "name": setting.name,
            "value": sorted(value) if isinstance(value, frozenset) else value,
            "origin": where,
            "env": setting.env,
            "help": setting.help,
        }
        for setting, value, where in call.config.rows()
    ]
    columns = [Column("SETTING", "name"), matters("VALUE", _text)]
    if origin:
        columns.append(Column("ORIGIN", "origin"))
    columns.append(Column("VARIABLE", "env"))
    return listing("SettingList", items, len(items), "name", columns, "")


def _text(item: object) -> str:
    assert isinstance(item, dict)
    return cli.words.value(item["name"], item["value"])


@command("config path", "vctl config path", common=READS)
def path(call: Call) -> Answer:
    """Print where the state is and which files are read."""
    from vctl.config import PROJECT_FILE, USER_FILE

    base = call.config.env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    data: Data = {
        "home": str(call.home),
        "project_file": os.path.join(call.config.cwd, PROJECT_FILE),
        "user_file": os.path.join(base, USER_FILE),
    }
    return single(
        data, call.home, lambda screen: screen.pairs([(name, str(value)) for name, value in data.items()])
    )
