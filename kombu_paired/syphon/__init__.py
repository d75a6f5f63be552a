"""The syphon: moves backlog messages to their entities on the primary, by one message pump for all backlog queues.

A message is settled in the backlog only after the primary has it, confirmed and routed. A process that dies in between
leaves a duplicate with the same message id, and never a gap. Any number of syphons may run at once.

=================  ===================================================================================================
``syphon``         the pump of a pairing, and a watch over its two namespaces
``standby``        waits for its turn, where one process of a machine moves the backlog
``by_itself``      runs one in processes that send, where these alone can reach the backlog
``pump``           moves the backlog queues, and decides what becomes of each message
``queues``         which queues it receives from, and what is done about one that fails
``delivery``       a batch on its way to the primary
``parcel``         a backlog message, translated
``handing_out``    a batch on its way to workers that stand in
``stand_ins``      which stand-in queues come home
``destinations``   which entities fail at the moment, and are left alone
``patience``       trying until it works
``teller``         says what happens, in log lines and events
=================  ===================================================================================================
"""

from kombu_paired.syphon.by_itself import run_by_itself, stop_what_runs_by_itself
from kombu_paired.syphon.destinations import Destinations
from kombu_paired.syphon.pump import MessagePump
from kombu_paired.syphon.syphon import Syphon

__all__ = ("Destinations", "MessagePump", "Syphon", "run_by_itself", "stop_what_runs_by_itself")
