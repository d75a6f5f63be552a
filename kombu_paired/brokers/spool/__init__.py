"""The spool: backlog queues on the local disk, for those who have one broker.

==================  ==================================================================================================
``driver``          the driver; what a URL of a spool says is in ``address``
``links``           links that send, and ``receiving`` the receivers
``transport``       the transport of Kombu's that they are made of
``store``           one spool as one process has it: its file, and its transactions
``sharing``         the spools of this process, and what a fork does to them
``together``        threads that share a transaction
``rows``            what is done in a transaction
``database``        one open file of a spool
``folder``          the folder: its files, their rights, and which of them is in use
``disk``            what the folder is on, and room in reserve
``saving``          what can be read of a file that was damaged
``locks``           who is alive, and who may write: locks that end with their process
``turn``            whose turn it is to bring it home
``kinds``           errors of SQLite and of the system, and of which kind they are
==================  ==================================================================================================
"""
