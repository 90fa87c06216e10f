"""Two hosts on this machine: network namespaces, joined by a virtual cable, with a host name each."""

import dataclasses
import os
import shutil
import subprocess

NAMES = "node-a", "node-b"
_ADDRESSES = "10.77.0.1", "10.77.0.2"
# An interpreter there knows both names, and gloo its network device.
_THERE = 'hostname "$1"; mount --bind "$2" /etc/hosts; export GLOO_SOCKET_IFNAME=fin; shift 2; exec "$@"'


@dataclasses.dataclass
class Hosts:
    spaces: list
    file: str  # of the hosts' names

    def command(self, number):
        """What begins a command that runs on that host."""
        inside = "unshare", "--mount", "--uts", "sh", "-c", _THERE, "sh", NAMES[number], self.file
        return "ip", "netns", "exec", self.spaces[number], *inside

    def close(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def _run(*words):
    subprocess.run(words, check=True, capture_output=True)


def start(folder):
    """(two hosts, None), or (None, why there are none)."""
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return None, "network namespaces need root, iproute2 and util-linux"
    file = folder / "hosts"
    file.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(_ADDRESSES, NAMES)))
    hosts = Hosts([f"fin-{os.getpid()}-{i}" for i in range(2)], str(file))
    first, second = hosts.spaces
    try:
        for space in hosts.spaces:
            _run("ip", "netns", "add", space)
        _run("ip", "link", "add", "fin", "netns", first, "type", "veth", "peer", "name", "fin", "netns", second)
        for space, address in zip(hosts.spaces, _ADDRESSES):
            _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "fin")
            for device in "lo", "fin":
                _run("ip", "-n", space, "link", "set", device, "up")
        _run(*hosts.command(0), "true")
    except (OSError, subprocess.CalledProcessError) as e:
        hosts.close()
        return None, f"no network namespaces here: {getattr(e, 'stderr', b'') or e}"
    return hosts, None
