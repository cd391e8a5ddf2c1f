"""Tidemill for trainers and submitters: the client, the command line and the generated messages.

It must never import a server package: a trainer installs this distribution alone.
"""
