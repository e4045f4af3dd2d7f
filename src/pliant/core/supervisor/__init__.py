"""The agent's decisions: which workers to start, stop and kill, and when to give up.

One pure function, `supervise(state, signal, now) -> (state, actions)`. The agent feeds it with what it observes and
carries out the actions.

- Live job (`live`): the coordinator orders a number of workers. The coordinator also decides which of them are in a
  world; a worker that is left out ends by itself. The agent starts workers, gives up on a script that never joins,
  kills workers that the coordinator has declared lost, and makes sure at the end that none is left.
- Relaunched job (`launched`): the coordinator assigns seats of a launch. The agent starts them together, stops them
  together when the launch is over, kills them when they all hang, and reports when none runs any more.

`orders` has the coordinator's orders and events, `endings` the end of a worker, `signals` all signals and actions.
"""

from pliant.core.supervisor.decide import agent_join, next_deadline, supervise
from pliant.core.supervisor.state import Supervisor, is_live

__all__ = ["Supervisor", "agent_join", "is_live", "next_deadline", "supervise"]
