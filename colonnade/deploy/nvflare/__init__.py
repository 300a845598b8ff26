"""Colonnade as jobs of NVFlare: the engine brings sites together, Colonnade trains between them.

    kits.py      project file and startup kits, from a federation file
    sitefile.py  what a site brings: its data, its signing key, its policy
    job.py       what is submitted: names and what all must agree on; no data, no path, no code
    server.py    at the engine's server: compare all sites, let them begin, collect what they say
    site.py      at a site: one call that plays the site's role with the code of `colonnade party`
    tunnel.py    for sites that open no port: sealed connections between them, through the engine
    submit.py    submit, follow, fetch; `colonnade nvflare submit`
    machine.py   all of it on one machine; `colonnade run --runtime nvflare`

Tensors do not pass through the engine, unless its tunnel is asked for: parties talk over the
streams of `net/`, with the certificates of the startup kits. Only server.py and site.py are
components of NVFlare; every site lists those two classes as allowed.
"""
