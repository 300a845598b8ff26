"""Everything that can be known about a run before it begins, with what to do about it.

    runfile     a run file: its settings, every party's own file, what these have in common
    code        Python files that these name: shown, not executed
    federation  the file that all share: members, links, method, what crosses and what that
                reveals, one digest of it all
    site        a site.toml: the same as of a party, with the certificate of its startup kit
    keys        a party's certificate and keys
    offer       its policy and its rows
    machine     its run folder, its disk, its software
    network     its own port, and whoever it would dial

Files are read, a port is bound for a moment, and peers are dialled as far as the TLS handshake.
Nobody is told anything and no frame is sent, so a federation that runs does not notice.
"""

from colonnade.deploy.doctor.check import Check, Mine
from colonnade.deploy.doctor.federation import examine
from colonnade.deploy.doctor.runfile import examine_run, is_run
from colonnade.deploy.doctor.site import examine_site, is_site

__all__ = ["Check", "Mine", "examine", "examine_run", "examine_site", "is_run", "is_site"]
