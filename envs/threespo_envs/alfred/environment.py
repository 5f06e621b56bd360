"""What the environments of this domain share: a world played through the plugin contract. They differ in where games come from."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from threespo_bench.contracts.environment import Action, Environment, Message, Observation, PromptContext, Step, Task
from threespo_bench.errors import EngineError, UsageError, suggest
from threespo_envs.alfred import anchors, parser, prompts
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import Snapshot, World

WIN_REWARD = 10.0


@dataclass
class AlfredConfig:
    """Options of every environment of this domain.

    Attributes:
        template: the prompt's form, ``compact`` or ``verl_agent``.
        history_length: how many past turns the prompt shows.
        list_admissible: the prompt lists the admissible commands; None leaves that to the template.
    """

    template: str = "compact"
    history_length: int | None = None
    list_admissible: bool | None = None


class AlfredEnvironment(Environment):
    """A game of the domain as an environment. Subclasses say which tasks there are and load their games.

    ``anchor("state")`` is the world itself, whatever was last shown; ``anchor("obs")`` is the text, as published methods group by,
    which hides what the agent holds; ``anchor("goal")`` is the state as far as the goal is concerned.
    """

    Config: ClassVar[type] = AlfredConfig
    anchors: ClassVar[tuple[str, ...]] = ("state", "obs", "goal")
    can_restore: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        prompts.template_named(config.template)
        if (config.history_length or 0) < 0:
            raise UsageError(f"env.history_length must not be negative, but is {config.history_length}")
        self._live: World | None = None
        self._won = False

    @abstractmethod
    def load_game(self, task: Task) -> Game:
        """The game of a task. Loading the same task again should give the same object while it is in use."""

    @property
    def max_new_tokens(self) -> int:  # type: ignore[override]
        """The length limit of a response that the template asks for, unless the run sets one."""
        return prompts.template_named(self.config.template).max_new_tokens

    @property
    def world(self) -> World:
        """The game being played."""
        if self._live is None:
            raise EngineError(f"{type(self).__name__} was used before a task was started", "call reset() first")
        return self._live

    def spawn(self) -> AlfredEnvironment:
        """Another live episode; the loaded data are shared."""
        twin = copy(self)
        twin._live = None
        twin._won = False
        return twin

    def reset(self, task: Task, seed: int) -> Observation:
        """Start a task. A game has no randomness, so the seed changes nothing."""
        game = self.load_game(task)
        if self._live is None or self._live.game is not game:
            self._live = World(game)
        self._live.reset()
        self._won = self._live.won
        return self._observation()

    def step(self, command: str) -> Step:
        """Carry out one command. The reward is paid by the step that wins; the world goes on if the host does."""
        world = self.world
        world.step(command)
        won = world.won
        reward = WIN_REWARD if won and not self._won else 0.0
        self._won = won
        return Step(self._observation(), reward, terminated=won, success=won)

    def anchor(self, kind: str) -> str:
        """The key of the present state; see the class."""
        world = self.world
        if kind == "state":
            return world.state_key()
        if kind == "obs":
            return world.observation
        if kind == "goal":
            return anchors.goal_key(world)
        raise UsageError(f"there is no anchor {kind!r}", suggest(kind, self.anchors))

    def snapshot(self) -> Snapshot:
        """The present state."""
        return self.world.snapshot()

    def restore(self, snapshot: Snapshot) -> Observation:
        """Go back to a snapshot of the task that was last started here, wherever it was taken."""
        world = self.world
        world.restore(snapshot)
        self._won = world.won
        return self._observation()

    def render(self, context: PromptContext) -> list[Message]:
        """The prompt for the present turn, in the configured form."""
        config = self.config
        return prompts.render(
            context,
            template=config.template,
            history_length=config.history_length,
            list_admissible=config.list_admissible,
        )

    def parse(self, response: str, observation: Observation) -> Action:
        """Read the command from a response, by the rules that the configured prompt states."""
        return parser.parse(response, observation, template=self.config.template)

    def _observation(self) -> Observation:
        # "help" is left out: it does nothing and only lists the verbs, which the prompts do as far as they want to.
        world = self.world
        return Observation(world.observation, world.admissible(with_help=False))
