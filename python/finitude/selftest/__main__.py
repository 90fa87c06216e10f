"""What `finitude selftest` starts: python -m finitude.selftest ORDER TARGET ... watches the program as `finitude run`
does, and carries out the order (a file that the command wrote and removes)."""

import json
import os
import sys

from ..base import config, family
from ..launch import targets


def main(argv):
    order, is_module, name, arguments = argv[0], argv[1] == "-m", argv[1], argv[2:]
    if is_module:
        name, arguments = argv[2], argv[3:]
    family.stand_down()
    family.withdraw(os.environ)
    with open(order, encoding="utf-8") as f:
        document = json.load(f)
    settings = config.Config(**document["settings"], selftest=os.path.abspath(order))
    target = targets.resolve(name, arguments, is_module)
    command = [sys.executable, "-m", "finitude.selftest", os.path.abspath(order), *argv[1:]]
    if target.kind == "command":
        from ..launch import supervise

        supervise.main(settings, target, command)
    from ..launch import run

    run.main(settings, target.kind == "module", target.name, target.arguments, command)


if __name__ == "__main__":
    main(sys.argv[1:])
